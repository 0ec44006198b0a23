"""The examples of the README and the documentation run, and the README's numbers are those of the results files."""

import dataclasses
import importlib
import json
import re
from pathlib import Path

import pytest
import torch

import factorized_fl as ffl
from factorized_fl.core.views import Local, Phase, Server
from factorized_fl.methods import METHODS
from factorized_fl.methods.loading import load_methods
from factorized_fl.presets import DEMO_METHODS, PRESETS
from factorized_fl.report.tables import comparison_cells
from factorized_fl.results.comparison import comparison_of
from factorized_fl.results.effect import effect_of
from factorized_fl.simulate.rounds import run_round
from tests.tiny import tiny_federation

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
METHODS_PAGE = (ROOT / "docs" / "methods.md").read_text()
OWN_METHOD = (ROOT / "docs" / "own-method.md").read_text()
GUIDE = (ROOT / "docs" / "run-and-read.md").read_text()
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
GENERATED = {
    ROOT / "docs" / "reference" / name for name in ("options.md", "commands.md", "python.md")
}  # by docs/hooks.py


@pytest.fixture
def example():
    before = dict(METHODS)
    from tests import example_method

    importlib.reload(example_method)
    yield example_method
    METHODS.clear()
    METHODS.update(before)


def test_the_example_method_equals_the_documentations_and_has_under_40_lines(example) -> None:
    source = (ROOT / "tests" / "example_method.py").read_text()
    code = source.split('"""\n', 1)[1].strip()
    assert code in OWN_METHOD
    assert len(code.splitlines()) < 40


def test_the_example_method_runs(example) -> None:
    federation = tiny_federation("nearest-neighbours", rounds=3)
    for round_number in (1, 2, 3):
        records, mixing = run_round(federation, round_number)
    assert mixing is not None
    assert torch.allclose(mixing.matrix.sum(1), torch.ones(4, dtype=torch.float64))
    assert (mixing.matrix > 0).sum(1).tolist() == [3, 3, 3, 3]
    assert all(record["up_bytes"] > 0 for record in records)


def test_the_example_method_runs_with_fewer_clients_than_neighbours(example) -> None:
    federation = tiny_federation("nearest-neighbours", clients=2)
    run_round(federation, 1)
    _, mixing = run_round(federation, 2)
    assert mixing is not None
    assert mixing.matrix.tolist() == [[0.5, 0.5], [0.5, 0.5]]


# A field that `option` did not make has no limits and no description.
PLAIN = """
from dataclasses import dataclass
from factorized_fl.methods import METHODS, register
@register
@dataclass(frozen=True)
class Plain(METHODS["fedavg"]):
    name = "plain"
    depth: int = 3
"""


def test_commands_load_the_example_method_from_a_file(tmp_path, monkeypatch, capsys) -> None:
    from factorized_fl import cli

    file, before = tmp_path / "nearest.py", dict(METHODS)
    monkeypatch.setenv("COLUMNS", "200")
    for text, words in (
        ((ROOT / "tests" / "example_method.py").read_text(), "nearest-neighbours"),
        (PLAIN, "plain: depth = 3\n"),
        ("x = 1\n", "registers no method: put @ffl.register"),
        ("x = 1\nx / 0\n", "(ZeroDivisionError: division by zero, line 2)"),
        ("from factorized_fl.methods import *\nregister(METHODS['fedavg'])\n", "a method 'fedavg' already"),
        (None, "There is no Python file"),
    ):
        file.write_text(text) if text else file.unlink()
        monkeypatch.setattr("sys.argv", ["ffl", "--load", str(file), "methods", "--options"])
        with pytest.raises(SystemExit):
            cli.main()
        found = capsys.readouterr()
        assert words in found.out + found.err, text
        METHODS.clear()
        METHODS.update(before)


def test_the_method_of_the_documentation_runs_and_keeps_its_state(tmp_path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", METHODS_PAGE, re.DOTALL)
    (tmp_path / "smoothed.py").write_text(block)
    before = dict(METHODS)
    try:
        load_methods(tmp_path / "smoothed.py")
        settings = {"clients": 3, "rounds": 3, "epochs": 1, "images_per_client": 40}
        found = ffl.run("demo", tmp_path / "run", method="smoothed-peers", **settings)
    finally:
        METHODS.clear()
        METHODS.update(before)
    second, third = (found.mixing(number)["state.similarity"] for number in (2, 3))
    assert not torch.equal(second, third)
    assert found.mixing(3)["matrix"].sum(1).tolist() == pytest.approx([1.0] * 3)


def test_the_documentation_names_every_hook_and_everything_that_hooks_see() -> None:
    section = METHODS_PAGE.partition("## Your own method")[2].partition("\n## ")[0]
    section = re.sub(r"```.*?```", "", section, flags=re.DOTALL)
    code = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", section))))
    hooks = {name for name in vars(ffl.Method) if not name.startswith("_")} - {"receives"}
    for view in (Local, Server, ffl.Mixing):
        hooks |= {field.name for field in dataclasses.fields(view)}
    hooks |= {field.name for field in dataclasses.fields(Phase)} - {"name"}
    assert not hooks - code


@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in PAGES])
def test_every_command_of_the_documentation_exists(page: str) -> None:
    from typer.main import get_command

    from factorized_fl.cli import app

    known = get_command(app).commands  # type: ignore[attr-defined]
    used = re.findall(r"(?:^|`)ffl (?:--load \S+ )?([a-z]+)(?: ([a-z]+)\b)?", (ROOT / page).read_text(), re.MULTILINE)
    assert used or page not in ("README.md", "docs/methods.md", "docs/federate.md")
    for command, further in used:
        assert command in known, command
        if further and hasattr(known[command], "commands"):
            assert further in known[command].commands, f"{command} {further}"


@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in PAGES])
def test_every_link_of_the_documentation_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = re.findall(r"\]\((?!http)([^)]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    for target in targets:
        name, _, anchor = target.partition("#")
        file = ((ROOT / page).parent / name if name else ROOT / page).resolve()
        assert file.exists() or file in GENERATED, target
        if anchor:
            there = file.read_text()
            headings = re.findall(r"^#+ (.+)$", there, re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors | set(re.findall(r'<a id="([^"]+)">', there)), target


def test_the_demos_numbers_are_those_of_the_results_file() -> None:
    rows = json.loads((ROOT / "results" / "demo" / "comparison.json").read_text())
    assert [row["method"] for row in rows] == DEMO_METHODS
    for found in rows:
        accuracy, _, *rest = comparison_cells(comparison_of(found))
        cells = (METHODS[found["method"]].card.title, f"{accuracy}%", *rest)
        assert f"| {' | '.join(cells)} |" in README


def test_the_full_runs_seconds_are_those_of_the_results_file() -> None:
    cell = ROOT / "results" / "paper" / "label-cifar10" / "permuted-iid" / "factorized-fl-beta-seed1.json"
    run = json.loads(cell.read_text())
    assert (run["environment"]["device"], run["configuration"]["rounds"]) == ("NVIDIA H200", 50)
    assert f"takes {run['seconds']['rounds']:.0f} s on one H200" in README.replace("\n", " ")


def test_the_pages_size_and_seconds_are_those_of_the_results_file() -> None:
    small, large = json.loads((ROOT / "results" / "performance" / "report-page.json").read_text())["pages"]
    words = GUIDE.replace("\n", " ")
    assert (small["clients"], small["rounds"], large["clients"], large["rounds"]) == (20, 100, 200, 200)
    assert f"20-client, 100-round page is {small['megabytes']:.2f} MB and opens in {small['open_s']:.1f} s" in words
    assert f"page of 200 clients and 200 rounds opens in {large['open_s']:.1f} s" in words


def test_the_numbers_beside_other_frameworks_are_those_of_the_results_file() -> None:
    rows = json.loads((ROOT / "results" / "performance" / "peers-cpu.json").read_text())["rows"]
    page = (ROOT / "docs" / "performance.md").read_text()
    for title, name in (("this package", "ours"), ("this package, two processes", "ours, 2 processes")):
        cells = [f"{rows[name][key]:.{digits}f}" for key, digits in (("seconds", 2), ("ratio", 2), ("start", 1))]
        assert f"| {title} | {' | '.join(cells)} | {rows[name]['peak_gib']:.2f} |" in page
    assert f"takes {rows['ours']['ratio']:.2f} of the time of a bare PyTorch loop" in README.replace("\n ", "")


def test_the_benchmarks_numbers_are_those_of_its_page() -> None:
    """After more runs: take the numbers of docs/benchmarks.md, and look whether the sentence is still true."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    lines = page.partition("\n## mini-domains\n")[2].partition("\n## ")[0].splitlines()
    table = {cells[1]: cells[2:] for line in lines if len(cells := [cell.strip() for cell in line.split("|")]) > 7}
    peers, alone, average = (table[name] for name in ("Factorized-Peers", "Stand-Alone", "FedAvg"))
    words = README.replace("\n", " ")
    assert f"Factorized-Peers {peers[0]}%, Stand-Alone {alone[0]}% and FedAvg {average[0]}%" in words
    assert f"to Factorized-Peers is {peers[3]} points: not decided" in words
    classes = (ROOT / "docs" / "classes.md").read_text()
    (row,) = re.findall(r"\| Factorized-Peers \| statistics \| 100 rounds, 1 epoch \|(.*)\n", classes)
    accuracy, _, gain, *_ = (cell.strip() for cell in row.split("|"))
    assert gain.endswith(" **better**")
    assert f"it reaches {accuracy}%, {gain.removesuffix(' **better**')} points over its control" in words


def test_what_the_readme_says_of_local_training_is_true_of_the_results() -> None:
    """Where a new result contradicts this, change the README's sentence, not the test."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    best = page.partition("\n## When to use which\n")[2].partition("\n## ")[0]
    better = {row[1].strip(): row[4].strip() for line in best.splitlines() if len(row := line.split("|")) > 5}
    agreeing = {name for name, table in PRESETS.items() if not table.get("permuted")}
    permuted = {name: word for name, word in better.items() if name in PRESETS and name not in agreeing}
    mixed = permuted.pop("mini-mixture").replace(" and ", ", ").split(", ")
    assert (set(permuted.values()), len(permuted), len(mixed)) == ({"none"}, 5, 7)
    assert "Compared with Stand-Alone, of 8 methods 7 are better" in page.partition("**mini-mixture**")[2][:100]
    assert len(better["mini-cifar"].replace(" and ", ", ").split(", ")) == 4
    mixture = page.partition("\n## mini-mixture\n")[2].partition("\n## ")[0].splitlines()
    gain_of = {cells[1].strip(): cells[4].strip() for line in mixture if len(cells := line.split("|")) > 7}
    shown = {name: gain_of[name].removesuffix(" **better**") for name in ("PACFL", "Factorized-Peers")}
    said = f"PACFL gains {shown['PACFL']} points over Stand-Alone and Factorized-Peers {shown['Factorized-Peers']}"
    assert said in README.replace("\n", " ")
    rows = [*json.loads((ROOT / "results" / "demo" / "comparison.json").read_text())]
    pacs = json.loads((ROOT / "results" / "open" / "pacs.json").read_text())["methods"]
    gains = [effect_of(row["alone"]) for row in [*rows, *pacs.values()] if row["alone"] and row is not pacs["fedavg"]]
    assert len(gains) > 5
    assert all(gain.low <= 0 and not gain.names("helped") for gain in gains)
    guide = (ROOT / "docs" / "own-data-and-model.md").read_text()
    for name, row in pacs.items():
        pair = [effect_of(row[key]) if row[key] else None for key in ("effect", "alone")]
        cells = [f"{100 * e.mean:+.1f} ({100 * e.low:+.1f} to {100 * e.high:+.1f})" if e else "-" for e in pair]
        assert f"| {METHODS[name].card.title} | {100 * row['accuracy']:.1f}% | {' | '.join(cells)} |" in guide
    gain = effect_of(pacs["fedavg"]["alone"])
    assert (gain.low > 0, gain.names("helped")) == (True, [])
    fedavg = json.loads((ROOT / "results" / "verdict" / "mnist.json").read_text())[0]
    effect = effect_of(fedavg["effect"])  # FedAvg's control is Stand-Alone
    assert (fedavg["method"], METHODS["fedavg"].card.control) == ("fedavg", "stand-alone")
    words = " ".join(README.split())
    assert f"by {100 * gain.mean:+.1f} points ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})" in words
    assert f"by {100 * effect.mean:+.1f} points ({100 * effect.low:+.1f} to {100 * effect.high:+.1f};" in words
    tables = (ROOT / "docs" / "paper" / "tables.md").read_text()  # written from results/paper, as a test checks
    assert "| Factorized-Peers, domains | Stand-Alone (statistics recalibrated) | 1, 2 | +8.10 | " in tables
    (row,) = re.findall(r"\n\| domains \| .* \| (73\.\d\d) ± [\d.]+ \| (65\.\d\d) ±", tables)
    assert f"reaches {float(row[0]):.1f}% and Stand-Alone {float(row[1]):.1f}%: each of 40 clients" in words
    assert "gains, +8.1 points on average" in words
    assert "+8.10 | +5.06 | +3.67 | 0 of 40 |" in tables  # the client that gains least gains 3.67


def test_the_number_of_methods_is_that_of_the_package() -> None:
    import factorized_fl.methods as package

    own = {name for name, method in METHODS.items() if method.__module__.startswith(package.__name__ + ".")}
    assert f"**{len(own)} methods and ablations**" in README
