"""The first hour at a terminal: lists of what there is, in full at 80 columns and as JSON."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from click.testing import CliRunner
from rich.console import Console

from factorized_fl.cli import app
from factorized_fl.cli.common import parse_numbers
from factorized_fl.cli.completion import entries_like, methods_like, settings_like
from factorized_fl.core.errors import unknown
from factorized_fl.methods import METHODS, Method, sentence_of
from factorized_fl.presets import PRESETS
from factorized_fl.report import available
from factorized_fl.report.listing import DescribedNames, NamedTable
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
        assert not any("…" in line or len(line) > width or line.endswith(" ") for line in lines)


def test_descriptions_wrap_beside_names_or_below_them() -> None:
    names = DescribedNames([("name", "one two three"), ("a", "four")])
    assert printed(names, 16) == ["name  one two", "      three", "a     four"]
    assert printed(names, 8) == ["name", "    one", "    two", "    thre", "    e", "a", "    four"]
    assert printed(names, 40) == ["name  one two three", "a     four"]


def test_no_two_presets_have_one_description() -> None:
    lines = printed(available.presets_list(), 400)
    assert len({line.partition("  ")[2] for line in lines}) == len(lines) == len(PRESETS)


def test_options_name_the_profile_that_changes_them(capsys) -> None:
    _, out, _ = ffl(capsys, "options", "scaffold")
    assert "which sets for scaffold: recalibrate = true, lr = 0.1, momentum = 0.0." in " ".join(out.split())


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
    assert not any("Stand-Alone  " in line for line in lines if line.startswith("method"))
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
    assert "(at least -1, at most 1)" in " ".join(out.split())
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
    assert {"tau", "layout"} <= {option["name"] for option in beta["options"]}
    code, out, _ = ffl(capsys, "options", "factorized-fl", "--json")
    found = json.loads(out)
    (tau,) = [option for option in found["method"] if option["name"] == "tau"]
    assert (tau["default"], tau["type"], tau["limits"]) == (0.5, "number", "at least -1, at most 1")
    (partition,) = [option for option in found["run"] if option["name"] == "partition"]
    assert partition["choices"] == ["iid", "dirichlet"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "demo", "--seed", "3"], "There is no option --seed: write --set seed=3."),
        (["run", "demo", "--batch-size=8"], "There is no option --batch-size: write --set batch_size=8."),
        (["pilot", "demo", "--seed"], "There is no option --seed: write --set seed=...."),
        (["compare", "demo", "--seed", "3"], "There is no option --seed: write --seeds 3."),
        (["compare", "demo", "--method", "fedavg"], "There is no option --method: write --methods fedavg."),
        (["compare", "demo", "--rounds", "3"], "There is no option --rounds: write --set rounds=3."),
        (["run", "demo", "--seeds", "1-3"], "There is no option --seeds here: several runs are made by `ffl compare`."),
        (["pilot", "demo", "--methods", "fedavg"], "There is no option --methods here"),
        (["inspect", "photos"], "There is no command 'inspect': write `ffl data inspect`."),
        (["status", "kit"], "There is no command 'status': write `ffl federation status`."),
        (["demo", "--set", "nosuch=1"], "Unknown option of a run with stand-alone 'nosuch'."),
        (["demo", "--seed", "3"], "There is no option --seed: write `ffl compare demo --seeds 3`."),
        (["compare", "demo", "--seeds", "3-1"], "--seeds '3-1': write the smaller number of '3-1' first;"),
        (["compare", "demo", "--seeds", "1-99999"], "a range has at most 1000."),
        (["compare", "demo", "--seeds", "1-"], "for example 1,2,3 or 1-3."),
        (["compare", "demo", "--seeds", "-1"], "for example 1,2,3 or 1-3."),
    ],
)
def test_the_right_form_is_the_answer(arguments: list[str], words: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = ffl(capsys, *arguments)
    assert (code, err.count("\n"), words in err) == (2, 1, True), err
    assert list(tmp_path.iterdir()) == []


def test_no_help_text_is_cut_at_80_columns(monkeypatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    monkeypatch.setenv("COLUMNS", "80")

    def pages(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        yield " ".join(words), CliRunner().invoke(command, ["--help"]).output
        for name, below in getattr(command, "commands", {}).items():
            yield from pages(below, (*words, name))

    found = dict(pages(typer.main.get_command(app), ("ffl",)))
    assert {"ffl", "ffl run", "ffl join", "ffl data inspect", "ffl federation new"} <= found.keys()
    assert [name for name, text in found.items() if "…" in text or "Usage" not in text] == []


def test_ranges_of_seeds() -> None:
    assert parse_numbers("--seeds", "1-3") == [1, 2, 3]
    assert parse_numbers("--seeds", "7, 1-2,5-5") == [7, 1, 2, 5]
    assert parse_numbers("--seeds", "") == []


def test_an_unknown_name_is_answered_with_at_most_five(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    many = [f"name-{k}" for k in range(20)]
    for given in ("name", "q", "name-77"):
        assert 1 <= sum(name in re.split(r"[ ,.']+", str(unknown("thing", given, many))) for name in many) <= 5
    assert str(unknown("thing", "q", many)).endswith("and 15 more.")
    assert str(unknown("thing", "q", "abc", "`ffl x`")) == "Unknown thing 'q'. Known: a, b, c."
    _, _, err = ffl(capsys, "run", "cifar-iid")
    assert err.startswith("Error: Unknown preset 'cifar-iid'. Did you mean 'cifar10-iid'? Also near: ")
    assert err.endswith("`ffl presets` lists all.\n")
    _, _, err = ffl(capsys, "run", "demo", "--method", "stand-alone", "--set", "tau=0.3")
    assert (
        "stand-alone has no option 'tau': factorized-fl has it. In a comparison write --set factorized-fl.tau=" in err
    )
    _, _, err = ffl(capsys, "run", "demo", "--method", "stand-alone", "--set", "fedavg.lr=0.3")
    assert "'fedavg.lr' is a setting for fedavg, but stand-alone is run." in err


def test_a_shell_completes_commands_and_presets() -> None:
    def completed(words: str, last: int) -> list[str]:
        marks = {"_FFL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(last)}
        code = "import sys; from factorized_fl.cli import main; sys.argv = ['ffl']; main()"
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **marks}, capture_output=True, text=True)
        return done.stdout.split()

    assert completed("ffl pre", 1) == ["presets", "predict"]
    assert completed("ffl run digits-p", 2) == ["digits-permuted-iid"]
    assert completed("ffl run demo --method factorized-p", 4) == ["factorized-peers"]
    assert set(methods_like("")) == set(METHODS)
    assert entries_like("fedavg,pfedp") == ["fedavg,pfedpara"]
    assert settings_like("rou") == ["rounds="]
