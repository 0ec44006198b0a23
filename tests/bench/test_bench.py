"""A benchmark suite: what is missing is run, each run is one file, and the page follows from the files."""

import json
from pathlib import Path

import numpy as np
import pytest

from factorized_fl.bench import cells, page
from factorized_fl.bench.cells import cells_of, read_suites, run_cells
from factorized_fl.core.errors import UserError
from factorized_fl.results.right import Graded, pack_graded, unpack_graded
from tests.test_cli import ffl

SUITES = """
[groups]
two = ["stand-alone", "factorized-peers"]
[suites.tiny]
preset = "demo"
groups = ["two"]
entries = ["fedavg:oracle=groups", "stand-alone:oracle=centralised"]
controls = ["factorized-peers"]
recalibrate = [true]
seeds = [1, 2]
settings = { rounds = 1, epochs = 1, images_per_client = 16, test_images = 40, clients = 6 }
"""


@pytest.fixture
def suites(tmp_path: Path) -> Path:
    path = tmp_path / "suites.toml"
    path.write_text(SUITES)
    return path


def test_the_packages_suites_are_possible_and_name_each_run_once() -> None:
    for name, suite in read_suites().items():
        found = cells_of(name, suite)
        assert len({cell.name for cell in found}) == len(found) > 20
    assert {"mini-domains", "mini-domains-30", "mini-cifar"} <= read_suites().keys()
    asked = {"fedap", "pacfl", "fedbn", "fedrep", "ditto", "factorized-peers"}
    assert all(asked <= set(suite["entries"]) for suite in read_suites().values())


def test_a_suite_runs_once_and_its_page_follows_from_the_files(suites: Path, tmp_path: Path, capsys) -> None:
    arguments = ["bench", "tiny", "--suites", suites, "--out", tmp_path / "out", "--work", tmp_path / "work"]
    code, out, err = ffl(capsys, *map(str, arguments))
    assert (code, err) == (0, "")
    files = sorted((tmp_path / "out" / "tiny").glob("*.json"))
    assert len(files) == 10
    assert "10/10" in out
    assert "control" in out
    before = {file: file.read_bytes() for file in files}
    record = json.loads(files[0].read_text())
    assert record.keys() >= {"commit", "machine", "configuration", "seed", "summary", "seconds"}
    code, out, _ = ffl(capsys, *map(str, arguments))
    assert (code, out.count("was done")) == (0, 10)
    assert {file: file.read_bytes() for file in files} == before
    code, _, _ = ffl(
        capsys, "bench", "--suites", str(suites), "--out", str(tmp_path / "out"), "--page", str(tmp_path / "p.md")
    )
    text = (tmp_path / "p.md").read_text()
    assert code == 0
    assert "## tiny" in text
    assert "factorized-peers (recalibrated, control)" in text
    assert text.count("| 2 |") == 5  # seeds of each row


def test_one_table_of_one_entry_and_other_configurations(suites: Path, tmp_path: Path) -> None:
    suite = read_suites(suites)["tiny"]
    one = cells_of("tiny", suite, [1], ["stand-alone"])
    assert [cell.name for cell in one] == ["stand-alone.recalibrated.seed1"]
    assert [state for _, state in run_cells(one, tmp_path, tmp_path / "work")] == ["done"]
    other = cells_of("tiny", {**suite, "settings": {"rounds": 2}}, [1], ["stand-alone"])
    with pytest.raises(UserError, match="is of another configuration: remove it"):
        list(run_cells(other, tmp_path, tmp_path / "work"))
    with pytest.raises(UserError, match="Unknown entry of the suite tiny 'fedavg'"):
        cells_of("tiny", suite, only=["fedavg"])


def record(entry: str, seed: int, correct: list[int], **config: object) -> cells.Record:
    clients = [
        {"client": k, "accuracy": right / 100, "correct": right, "total": 100, "domain": f"d{k // 2}"}
        for k, right in enumerate(correct)
    ]
    default = {"recalibrate": True, "control": False, "oracle": "none", "clients": 4, "clients_per_domain": []}
    summary = {"clients": clients, "up_bytes": 1e6, "down_bytes": 1e6}
    same = {"seed": seed, "commit": "abc", "right": {}}
    return {"entry": entry, **same, "configuration": default | config, "summary": summary}


def test_rows_by_hand() -> None:
    records = [record("stand-alone", seed, [50, 50, 50, 50]) for seed in (1, 2, 3)]
    records += [record("factorized-peers", seed, [90, 90, 90, 90]) for seed in (1, 2, 3)]
    records += [record("fedavg", seed, [10, 10, 10, 10]) for seed in (1, 2, 3)]
    records += [record("pooled", 1, [60, 90], oracle="centralised", clients_per_domain=[1, 3])]
    rows = {row.entry: row for row in page.rows_of(records)}
    assert list(rows) == ["factorized-peers", "pooled", "stand-alone", "fedavg"]
    assert rows["pooled"].accuracy == pytest.approx(0.825)  # (60 + 3 x 90) / 4
    assert rows["factorized-peers"].under_reference is None
    over = rows["factorized-peers"].over_alone
    assert over is not None
    assert over.mean == pytest.approx(0.4)
    assert over.low > 0.3
    text = page.table("x", records)
    assert "Factorized-Peers is better than: pooled (recalibrated), stand-alone (recalibrated)" in text or (
        "Factorized-Peers is better than: stand-alone (recalibrated), fedavg (recalibrated)" in text
    )
    assert "Did not work, as it is below Stand-Alone: fedavg (recalibrated)." in text


def test_differences_are_between_answers_to_the_same_images(tmp_path: Path) -> None:
    """Both are right in 50 of 100 images: the same ones, so the bits give a smaller error than the counts."""
    records = [record("stand-alone", 1, [50]), record("factorized-peers", 1, [50])]
    (by_counts,) = (row.over_alone for row in page.rows_of(records) if row.over_alone)
    graded = Graded(np.arange(100) < 50, np.arange(100, dtype=np.int32))
    packed = pack_graded({0: graded}, tmp_path)
    for one in records:
        one["right"] = unpack_graded(packed, tmp_path)
    (by_bits,) = (row.over_alone for row in page.rows_of(records) if row.over_alone)
    assert by_bits.high == pytest.approx(1.96 * 0.01, rel=0.01)  # one discordant image of 100
    assert by_counts.high > 5 * by_bits.high


def test_a_result_numbers_clients_from_one_and_keeps_its_bits(suites: Path, tmp_path: Path) -> None:
    (cell,) = cells_of("tiny", read_suites(suites)["tiny"], [1], ["stand-alone"])
    list(run_cells([cell], tmp_path, tmp_path / "work"))
    path = cell.path(tmp_path)
    assert [one["client"] for one in json.loads(path.read_text())["summary"]["clients"]][:2] == ["client 1", "client 2"]
    tested = cells.tests_of(cells.read_cell(path))
    assert [one["client"] for one in tested.final] == list(range(6))
    assert all(int(tested.right[one["client"]].right.sum()) == one["correct"] for one in tested.final)
