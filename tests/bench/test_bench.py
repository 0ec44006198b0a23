"""A benchmark suite: what is missing is run, each run is one file, and the page follows from the files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from factorized_fl.bench import cells
from factorized_fl.bench.cells import (
    Place,
    expected_seconds,
    mean_accuracy,
    read_cell,
    run_cell,
    run_cells,
)
from factorized_fl.bench.differences import control_entry
from factorized_fl.bench.rates import choose_rates, read_rates, write_rates
from factorized_fl.bench.suites import Suite, cells_of, find_cell, make_cell, read_suites, tuning_cells
from factorized_fl.core.errors import UserError
from tests.test_cli import ffl

SUITES = """
[tuning]
seed = 1
rates = [0.01, 0.02]
[tuning.methods]
factorized-peers = [0.02]
[tuning.options]
factorized-peers = [{ sparsity = 0.001 }]
[settings]
test_every = 100
[groups]
two = ["stand-alone", "factorized-peers"]
[suites.tiny]
preset = "demo"
groups = ["two"]
entries = ["factorized-fedavg:control=true", "fedavg:oracle=groups", "stand-alone:oracle=centralised"]
seeds = [1, 2]
settings = { rounds = 1, epochs = 1, images_per_client = 16, test_images = 40, clients = 6 }
[suites.same-rates]
preset = "demo"
groups = ["two"]
rates_of = "tiny"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "suites.toml"
    path.write_text(SUITES)
    return path


@pytest.fixture
def tiny(file: Path) -> Suite:
    return read_suites(file)["tiny"]


def place(folder: Path) -> Place:
    return Place(folder / "out", folder / "work")


def test_the_packages_suites_are_possible_and_name_each_run_once() -> None:
    suites = read_suites()
    asked = {"fedap", "pacfl", "fedbn", "fedrep", "ditto", "factorized-peers", "stand-alone"}
    for suite in suites.values():
        found = cells_of(suite, {}, seeds=[1])
        assert len({cell.name for cell in found}) == len(found) == len(suite.entries)
        assert asked <= set(suite.entries)
        assert {control_entry(entry) for entry in asked} <= set(suite.entries)
        assert suite.rates_of or all(len(suite.rates(entry)) == 6 for entry in suite.tuned_entries)
        assert all(cell.config.recalibrate and cell.config.test_every >= cell.config.rounds for cell in found)
    every = suites["mini-domains"].entries
    assert {control_entry(entry) for entry in every} <= set(every)
    assert {"mini-domains", "mini-domains-30", "mini-mixture", "mini-pacs"} <= suites.keys()


def test_the_command_tunes_runs_once_and_writes_the_page(file: Path, tmp_path: Path, capsys) -> None:
    where = ["--suites", file, "--out", tmp_path / "out", "--work", tmp_path / "work"]
    shared = list(map(str, where))
    code, out, err = ffl(capsys, "bench", "tiny", "--tune", *shared)
    assert (code, err) == (0, "")
    assert "6 runs, 0 done" in out
    assert "tiny: factorized-peers has lr = 0.02" in out
    code, out, err = ffl(capsys, "bench", "tiny", *shared)
    assert (code, err, out.count("was done")) == (0, "", 3)  # the tuning's runs with the chosen rates
    assert "minutes left" in out
    files = sorted((tmp_path / "out" / "tiny").glob("*.json"))
    assert len(files) == 6 + 10 - 3
    assert not list((tmp_path / "work").rglob("config.toml"))
    assert all(file.stat().st_size < 6000 for file in files)
    before = {file: file.read_bytes() for file in files}
    code, out, _ = ffl(capsys, "bench", "tiny", *shared)
    assert (code, out.count("was done")) == (0, 10)
    assert {file: file.read_bytes() for file in files} == before
    code, out, _ = ffl(capsys, "bench", "all", "--list", *shared)
    assert (code, len(out.splitlines())) == (0, 6)
    assert out.startswith("same-rates stand-alone.lr")
    code, _, _ = ffl(capsys, "bench", *shared, "--page", str(tmp_path / "p.md"))
    text = (tmp_path / "p.md").read_text()
    assert code == 0
    assert "## tiny" in text
    assert "- same-rates: none of 6 runs is done." in text


def test_one_cell_by_name_gives_both_accuracies_of_one_run(tiny: Suite, tmp_path: Path) -> None:
    name = cells_of(tiny, {"factorized-peers": {"lr": 0.5}}, [2], ["factorized-peers"])[0].name
    assert name == "factorized-peers.lr0.5.seed2"
    cell = find_cell(tiny, name)
    record = run_cell(tiny, name, place(tmp_path))
    assert str(record) == str(read_cell(cell.path(tmp_path / "out"), cell.config))
    assert str(record) == str(run_cell(tiny, name, place(tmp_path)))
    assert record.keys() >= {"commit", "machine", "configuration", "seed", "seconds"}
    for client in record["clients"]:
        assert {part for kind in ("plain", "recalibrated") for part in client[kind]} == {"test", "validation"}
    tested = cells.tests_of(record)
    assert [one["client"] for one in tested.final] == list(range(6))
    assert all(int(tested.right[one["client"]].right.sum()) == one["correct"] for one in tested.final)
    assert mean_accuracy(record, "plain") != mean_accuracy(record, "recalibrated")
    assert (
        expected_seconds([cell, make_cell(tiny, cell.entry, 1, {"lr": 0.5})], tmp_path / "out", 2)
        == record["seconds"] / 2
    )
    assert expected_seconds([make_cell(tiny, cell.entry, 1, {"lr": 0.5})], tmp_path / "elsewhere") is None


@pytest.mark.parametrize("name", ["nothing.lr0.1.seed1", "stand-alone.lrx.seed1", "stand-alone", ""])
def test_names_of_no_cell_are_refused(tiny: Suite, name: str) -> None:
    with pytest.raises(UserError, match="has no run"):
        find_cell(tiny, name)


def test_another_configuration_and_other_entries_are_refused(tiny: Suite, file: Path, tmp_path: Path, capsys) -> None:
    write(tiny, tmp_path / "out", "stand-alone", {"lr": 0.02}, 1, 30)
    one = make_cell(replace(tiny, settings={**tiny.settings, "rounds": 2}), "stand-alone", 1, {"lr": 0.02})
    with pytest.raises(UserError, match="is of another configuration: remove it"):
        list(run_cells([one], place(tmp_path)))
    with pytest.raises(UserError, match="Unknown entry of the suite tiny 'fedavg'"):
        cells_of(tiny, {}, only=["fedavg"])
    with pytest.raises(UserError, match="takes the rates of tiny: tune that one"):
        tuning_cells(read_suites(file)["same-rates"])
    assert "without --tune" in ffl(capsys, "bench", "tiny", "--suites", str(file), "--tune", "--cell", "x")[2]
    assert "--seeds 1 has no effect" in ffl(capsys, "bench", "tiny", "--suites", str(file), "--tune", "--seeds", "1")[2]


def write(suite: Suite, out: Path, entry: str, choice: dict, seed: int, right: int) -> None:
    cell = make_cell(suite, entry, seed, choice)
    counts = {kind: {part: [right, 100] for part in ("test", "validation")} for kind in ("plain", "recalibrated")}
    content = {"entry": entry, "seed": seed, "commit": "abc", "machine": {"date": "2026-01-02T03"}, "seconds": 60.0}
    content |= {"configuration": json.loads(json.dumps(cell.config.__dict__ | {"options": dict(cell.config.options)}))}
    content |= {
        "up_bytes": 1e6,
        "down_bytes": 1e6,
        "activated": None,
        "right": [],
        "clients": [{"domain": "d", "loss": 1.0, **counts}],
    }
    path = cell.path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_rates_are_those_that_were_best_on_validation(tiny: Suite, file: Path, tmp_path: Path) -> None:
    assert read_rates(tiny, tmp_path) == {}
    write(tiny, tmp_path, "stand-alone", {"lr": 0.01}, 1, 30)
    assert write_rates(tiny, tmp_path)["chosen"] == {}
    write(tiny, tmp_path, "stand-alone", {"lr": 0.02}, 1, 40)
    content = write_rates(tiny, tmp_path)
    assert content == choose_rates(tiny, tmp_path)
    tried = [(one["choice"], one["validation"]) for one in content["tried"]["stand-alone"]]
    assert tried == [({"lr": 0.01}, 0.3), ({"lr": 0.02}, 0.4)]
    assert content["unfinished"] == ["factorized-fedavg:control=true", "factorized-peers"]
    for suite in read_suites(file).values():
        assert read_rates(suite, tmp_path) == {"stand-alone": {"lr": 0.02}}
    with_options = {"lr": 0.02, "sparsity": 0.001}
    write(tiny, tmp_path, "factorized-peers", {"lr": 0.02}, 1, 30)
    write(tiny, tmp_path, "factorized-peers", with_options, 1, 50)
    assert write_rates(tiny, tmp_path)["chosen"]["factorized-peers"] == with_options
    (cell,) = cells_of(tiny, read_rates(tiny, tmp_path), [1], ["factorized-peers"])
    assert (cell.name, cell.config.options["sparsity"]) == ("factorized-peers.sparsity=0.001.lr0.02.seed1", 0.001)
    assert find_cell(tiny, cell.name) == cell
    rates = {cell.entry: cell.config.lr for cell in cells_of(tiny, read_rates(tiny, tmp_path), [1])}
    assert rates["stand-alone"] == rates["stand-alone:oracle=centralised"] == 0.02
    assert rates["fedavg:oracle=groups"] == make_cell(tiny, "fedavg:oracle=groups", 1).config.lr


def test_a_run_that_breaks_does_not_end_the_others(tiny: Suite, tmp_path: Path, monkeypatch) -> None:
    def broken(*given, **named):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(cells, "run", broken)
    found = [state for _, state in run_cells(cells_of(tiny, {}, [1])[:2], place(tmp_path))]
    assert found == ["stopped by ZeroDivisionError: by zero"] * 2
