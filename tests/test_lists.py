"""The first hour at a terminal: lists of what there is, in full at 80 columns and as JSON."""

import io
import json

import pytest
from rich.console import Console

from factorized_fl.methods import METHODS, Method, sentence_of
from factorized_fl.presets import PRESETS
from factorized_fl.report import available
from factorized_fl.report.listing import NamedTable
from factorized_fl.report.tables import comparison_table
from factorized_fl.results.comparison import Comparison
from tests.test_cli import ffl


def printed(what: object, width: int = 80) -> list[str]:
    """The lines that a terminal of this width shows."""
    file = io.StringIO()
    Console(file=file, width=width).print(what)
    return file.getvalue().splitlines()


def first_words(lines: list[str]) -> list[str]:
    return [line.split("  ")[0] for line in lines if line[:1].strip()]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_lists_show_all_names_in_full(width: int) -> None:
    assert first_words(printed(available.presets_list(), width)) == list(PRESETS)
    assert first_words(printed(available.methods_list(), width)) == list(METHODS)
    for lines in (printed(available.presets_list(), width), printed(available.methods_list(), width)):
        assert not any("…" in line or len(line) > width for line in lines)


def test_a_table_continues_below_where_columns_do_not_fit() -> None:
    """17 columns of the name, then 2 + 14 for each other: at 80 columns three of six fit, at 49 two."""
    table = NamedTable(("name", *(f"number {k}" for k in range(6))), title="Title", caption="End")
    table.add_row("a" * 17, *(f"{k} of 1,000,000" for k in range(6)))
    for width, groups in ((113, 1), (112, 2), (80, 2), (49, 3), (20, 6)):
        lines = printed(table, width)
        assert (lines[0], lines[-1].strip()) == ("Title", "End")
        assert "\n".join(lines[1:]).count("a") == 17 * groups + groups  # "name" has one, too
        if width > 20:
            assert all(f"{k} of 1,000,000" in "\n".join(lines) for k in range(6))


def test_the_comparison_shows_whole_names_and_all_numbers_at_80_columns() -> None:
    rows = [Comparison(name, 0.4321, 0.1, 0.02, 15_400_000.0, 230_700.0, ()) for name in METHODS]
    lines = printed(comparison_table(rows, "demo, 3 seeds"))
    titles = [method.card.title for method in METHODS.values()]
    assert [title for title in titles if sum(line.startswith(f"{title} ") for line in lines) < 2] == []
    text = "\n".join(lines)
    assert text.count("43.21%") == text.count("15.4 MB") == text.count("230.7 kB") == len(rows)
    assert max(map(len, lines)) <= 80
    wide = printed(comparison_table(rows, "demo, 3 seeds"), 140)
    assert len(wide) == 1 + 2 + len(rows)


def test_a_method_is_one_sentence() -> None:
    for name, method in METHODS.items():
        sentence = sentence_of(method)
        assert sentence.endswith("."), name
        assert 20 < len(sentence) < 120, name


def test_a_method_without_a_docstring_is_described_by_its_title() -> None:
    class Bare(Method):
        card = METHODS["fedavg"].card

    assert sentence_of(Bare) == "FedAvg"
    assert sentence_of(type("Described", (Bare,), {"__doc__": " One thing.\n\nMore."})) == "One thing."


def test_options_are_listed_with_default_meaning_and_limits(capsys) -> None:
    code, out, _ = ffl(capsys, "options", "factorized-fl")
    assert code == 0
    assert "rounds = 50 " in out
    assert "communication rounds (at least 1)" in out
    assert 'partition = "iid"' in out
    assert "(one of iid, dirichlet)" in out
    assert "tau = 0.5 " in out
    assert "(at least -1, at most 1)" in out
    assert "preset" not in out.split("Options of factorized-fl")[0].replace("presets", "")
    code, out, _ = ffl(capsys, "options")
    assert (code, "tau = " in out, "ffl options METHOD" in out) == (0, False, True)
    code, _, err = ffl(capsys, "options", "factorized")
    assert (code, "Unknown method 'factorized'" in err) == (2, True)


def test_lists_as_json(capsys) -> None:
    code, out, err = ffl(capsys, "presets", "--json")
    presets = {preset["name"]: preset for preset in json.loads(out)}
    assert (code, err, list(presets)) == (0, "", list(PRESETS))
    assert (presets["demo"]["clients"], presets["demo"]["methods"]["factorized-fl"]["tau"]) == (12, 0.0)
    code, out, _ = ffl(capsys, "methods", "--json")
    assert [set(method) for method in json.loads(out)] == [{"name", "title", "sentence"}] * len(METHODS)
    code, out, _ = ffl(capsys, "methods", "--json", "--costs", "--options")
    beta = next(method for method in json.loads(out) if method["name"] == "factorized-fl-beta")
    assert beta["gigabytes"]["published"] == 18.25
    assert beta["choices"]["shared"] == "u, v, mu, norm, bias"
    assert {"tau", "settle"} <= {option["name"] for option in beta["options"]}
    code, out, _ = ffl(capsys, "options", "factorized-fl", "--json")
    found = json.loads(out)
    (tau,) = [option for option in found["method"] if option["name"] == "tau"]
    assert (tau["default"], tau["type"], tau["limits"]) == (0.5, "number", "at least -1, at most 1")
    (partition,) = [option for option in found["run"] if option["name"] == "partition"]
    assert partition["choices"] == ["iid", "dirichlet"]
