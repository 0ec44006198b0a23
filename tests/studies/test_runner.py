import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from factorized_fl.core.errors import UserError
from factorized_fl.results.rundir import RunDirectory
from studies.paper.cells import Cell
from studies.paper.grid import select
from studies.paper.jobs import expected_seconds, run_cells
from studies.paper.table import read_run
from studies.runner import Clock, as_record, came_from
from tests.studies.fake import cell_of, write

pytestmark = pytest.mark.usefixtures("tiny_studies")


def run_all(cells: list[Cell], folder: Path, images: Path, **options) -> list[tuple[str, str]]:
    ran = run_cells(cells, folder / "results", data=images, work=folder / "work", device="cpu", **options)
    return [(progress.name.split("/")[-1].rpartition("-seed")[0], progress.state) for progress in ran]


def kept(folder: Path) -> dict[str, dict]:
    """All cells, less what differs between equal runs."""
    paths = sorted((folder / "results").rglob("*.json"))
    records = {path.name: json.loads(path.read_text()) for path in paths}
    for record in records.values():
        del record["seconds"], record["environment"]["date"]
    return records


def test_cells_become_files_once(images: Path, tmp_path: Path) -> None:
    cells = select(["domains"], [1])
    assert [state for _, state in run_all(cells, tmp_path, images)] == ["done"] * 3
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").rglob("*.json")}
    assert [state for _, state in run_all(cells, tmp_path, images)] == ["was done"] * 3
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "results").rglob("*.json")} == before
    assert run_all(select(["ablation"]), tmp_path, images) == [
        ("fedavg", "was done"),
        ("factorized-fl+alone", "done"),
    ]
    assert not list((tmp_path / "work").rglob("checkpoint*"))


def test_a_note_is_kept_with_the_results_it_was_given_for(images: Path, tmp_path: Path) -> None:
    cells = select(["domains"], [1])
    run_all(cells[:1], tmp_path, images)
    run_all(cells[:2], tmp_path, images, note="enlarged copies")
    found = [read_run(cell.path(tmp_path / "results")) for cell in cells[:2]]
    assert [result.record.get("note") for result in found if result] == [None, "enlarged copies"]


def test_a_file_holds_accuracy_bytes_configuration_and_where_it_came_from(images: Path, tmp_path: Path) -> None:
    run_all(select(["domains"], [1]), tmp_path, images)
    record = json.loads((tmp_path / "results" / "domains" / "factorized-fl-seed1.json").read_text())
    names = ("what", "setting", "method", "variant", "seed")
    assert [record[name] for name in names] == ["domains", "domains", "factorized-fl", "", 1]
    assert record["configuration"]["options"]["tau"] == 0.5
    assert record["environment"]["packages"]["torch"]
    assert record["clients"] == {
        "domain": ["bars", "bars", "lines", "lines"],
        "train": [18, 18, 24, 24],
        "scored": [12, 12, 16, 16],
    }
    assert [len(row) for row in record["correct"]] == [4, 4, 4]
    assert all(0 <= right <= 16 for row in record["correct"] for right in row)
    assert record["bytes"]["up"] == sum(record["bytes"]["up_per_round"]) > 0
    assert record["bytes"]["down_per_round"][0] == 0  # nothing precedes the first round
    assert record["bytes"]["formula_a"] < record["bytes"]["formula_b"]
    assert len(record["mixing"]["own"]) == 2
    assert list(record["factors"]["v"]["matrices"]) == ["1", "2", "3"]
    assert record["factors"]["v"]["matrices"]["2"][0][0] == 1.0
    assert len(record["factors"]["mu_kept"]) == 3
    assert record["seconds"]["rounds"] > 0
    assert "peak_gib" not in record  # a CPU has none
    alone = json.loads((tmp_path / "results" / "domains" / "stand-alone-seed1.json").read_text())
    assert "mixing" not in alone
    assert alone["bytes"]["up"] == 0


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C is heard, also where the tests themselves run in the background of a script, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class InterruptIn:
    """Ctrl-C in the middle of a round."""

    def __init__(self, round_number: int) -> None:
        self.round = round_number

    def __enter__(self) -> "InterruptIn":
        return self

    def __exit__(self, *error: object) -> None: ...

    def started(self, federation, done) -> None: ...

    def client_done(self, round_number: int, client: int) -> None:
        if round_number == self.round and client == 1:
            os.kill(os.getpid(), signal.SIGINT)

    def round_done(self, round_number, records) -> None: ...


@pytest.mark.usefixtures("interruptible")
def test_interrupted_cell_is_checkpointed_after_its_round_and_ends_the_same(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = select(["domains"], [1], ["factorized-fl", "fedavg"])
    run_all(cells, tmp_path / "whole", images)
    # Only the first and last checkpoints would be written by themselves.
    monkeypatch.setattr("factorized_fl.simulate.run._CHECKPOINT_SHARE", 0.0)
    states = [state for _, state in run_all(cells, tmp_path / "cut", images, watch=lambda config: InterruptIn(2))]
    assert states == ["cut off", "no time"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    (checkpoint,) = (tmp_path / "cut" / "work").rglob("checkpoint.safetensors")
    assert RunDirectory(checkpoint.parent).checkpoint_round() == 2
    assert not (tmp_path / "cut" / "results").exists()
    assert [state for _, state in run_all(cells, tmp_path / "cut", images)] == ["done", "done"]
    assert kept(tmp_path / "cut") == kept(tmp_path / "whole")


@pytest.mark.usefixtures("interruptible")
def test_second_interrupt_ends_at_once(images: Path, tmp_path: Path) -> None:
    class Twice(InterruptIn):
        def client_done(self, round_number: int, client: int) -> None:
            if round_number == self.round:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_all(select(["domains"], [1]), tmp_path, images, watch=lambda config: Twice(2))


def test_no_cell_is_begun_that_does_not_fit_but_one_under_way_goes_on(images: Path, tmp_path: Path) -> None:
    first, second = select(["domains"], [1, 2], ["fedavg"])
    assert run_all([first], tmp_path, images, clock=Clock(60)) == [("fedavg", "done")]
    path = first.path(tmp_path / "results")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": {"rounds": 90.0, "start": 10.0}}))
    assert run_all([second], tmp_path, images, clock=Clock(0)) == [("fedavg", "no time")]
    assert run_all([second], tmp_path, images, clock=Clock(99)) == [("fedavg", "no time")]
    assert run_all([second], tmp_path, images, clock=Clock(200), watch=lambda _: InterruptIn(1)) == [
        ("fedavg", "cut off")
    ]
    assert run_all([second], tmp_path, images, clock=Clock(99)) == [("fedavg", "done")]


def test_what_cells_took_elsewhere_says_nothing_of_here(images: Path, tmp_path: Path) -> None:
    """An hour on another machine, with 30 seconds left here."""
    first, second = select(["domains"], [1, 2], ["fedavg"])
    run_all([first], tmp_path, images)
    path = first.path(tmp_path / "results")
    record = json.loads(path.read_text()) | {"seconds": {"rounds": 3600.0, "start": 10.0}}
    path.write_text(json.dumps(record))
    assert run_all([second], tmp_path, images, clock=Clock(30)) == [("fedavg", "no time")]
    path.write_text(json.dumps(record | {"environment": {"device": "a slow machine"}}))
    assert run_all([second], tmp_path, images, clock=Clock(30)) == [("fedavg", "done")]


def test_a_cell_is_expected_to_take_what_its_method_took_best_of_all_in_its_setting(tmp_path: Path) -> None:
    cell = cell_of("deviations", "permuted-iid", "factorized-fl+no-l1")

    def took(seconds: float, row: str, setting: str) -> float:
        write(tmp_path, "deviations", row, [60.0] * 20, setting=setting, seconds={"rounds": seconds, "start": 0.0})
        return expected_seconds(cell, tmp_path, "a test")

    assert expected_seconds(cell, tmp_path, "a test") == 0.0
    assert took(100.0, "fedfomo+keep-current", "permuted-iid") == 150.0
    assert took(500.0, "factorized-fl+no-l1", "domains") == 500.0
    assert took(60.0, "factorized-fl+released", "permuted-iid") == 60.0
    assert took(80.0, "factorized-fl+head-mu", "permuted-iid") == 80.0
    assert expected_seconds(cell, tmp_path, "another") == 0.0


def test_stops_when_another_round_does_not_fit(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.runner._ROUND_MARGIN", 1e9)
    (cell,) = select(["domains"], [1], ["fedavg"])
    assert run_all([cell], tmp_path, images, clock=Clock(60)) == [("fedavg", "cut off")]
    assert run_all([cell], tmp_path, images) == [("fedavg", "done")]


def test_a_lost_file_is_written_again_from_the_run_even_without_time(images: Path, tmp_path: Path) -> None:
    cells = select(["domains"], [1])
    run_all(cells, tmp_path, images)
    before = kept(tmp_path)
    lost = cells[2].path(tmp_path / "results")
    seconds = json.loads(lost.read_text())["seconds"]
    lost.unlink()
    nowhere = tmp_path / "no data"
    states = [state for _, state in run_all(cells, tmp_path, nowhere, clock=Clock(0))]
    assert states == ["was done", "was done", "done"]
    assert kept(tmp_path) == before
    assert json.loads(lost.read_text())["seconds"] == seconds | {"start": 0.0}


def test_a_complete_run_that_cannot_be_read_says_what_to_do(images: Path, tmp_path: Path) -> None:
    (cell,) = select(["domains"], [1], ["factorized-fl"])
    run_all([cell], tmp_path, images)
    cell.path(tmp_path / "results").unlink()
    (analysis,) = (tmp_path / "work").rglob("analysis.json")
    analysis.write_text('{"confusion": []}')
    with pytest.raises(UserError, match=r"complete but cannot be read.*sizes.*remove it"):
        run_all([cell], tmp_path, images)
    analysis.unlink()
    with pytest.raises(UserError, match=r"complete but cannot be read.*remove it"):
        run_all([cell], tmp_path, images)
    assert not cell.path(tmp_path / "results").exists()


def test_a_file_from_another_configuration_is_kept_and_pointed_out(images: Path, tmp_path: Path) -> None:
    (cell,) = select(["domains"], [1], ["factorized-fl"])
    run_all([cell], tmp_path, images)
    (progress,) = run_cells([cell], tmp_path / "results", chosen=lambda cell: {"tau": 0.25})
    assert (progress.state, progress.other_configuration) == ("was done", True)
    result = read_run(cell.path(tmp_path / "results"))
    assert result is not None
    assert result.record["configuration"]["options"]["tau"] == 0.5


def test_a_file_from_before_an_option_was_there_has_its_default() -> None:
    (cell,) = select(["domains"], [1], ["factorized-fl"])
    config = cell.config()
    record = {"configuration": as_record(config)}
    assert came_from(record, config)
    del record["configuration"]["options"]["head_mu"]
    assert came_from(record, config)
    assert not came_from(record, cell.config({"head_mu": "xavier"}))
    record["configuration"]["options"]["was-removed"] = 1
    assert not came_from(record, config)
