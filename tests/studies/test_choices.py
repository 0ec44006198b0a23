import json
from pathlib import Path

import pytest

from studies.paper import grid, jobs
from studies.paper.cells import Cell
from studies.paper.grid import STUDIES, Family, Study, pilot_cell
from studies.paper.jobs import chosen_options, run_cells, run_studies, write_choices
from studies.runner import Clock


def pretend(results: Path, cell: Cell, correct: list[int], **more: object) -> None:
    path = cell.path(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"correct": [[0, 0], correct], "clients": {"scored": [10, 10], "domain": ["all", "all"]}, **more}
    path.write_text(json.dumps(record))


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> Family:
    family = Family("fedprox", "cifar10-iid", 2, ({"proximal": 0.1}, {"proximal": 1.0}, {"proximal": 2.0}))
    monkeypatch.setattr(jobs, "FAMILIES", (family,))
    return family


def test_the_best_mean_on_validation_images_wins_once_all_candidates_were_run(family: Family, tmp_path: Path) -> None:
    first, second, third = family.cells()
    assert {cell.config().score for cell in family.cells()} == {"validation"}
    assert [cell.config().options["proximal"] for cell in family.cells()] == [0.1, 1.0, 2.0]
    pretend(tmp_path, first, [4, 4])
    pretend(tmp_path, second, [9, 1])
    assert write_choices(tmp_path) == []
    pretend(tmp_path, third, [5, 5])
    (entry,) = write_choices(tmp_path)
    assert entry["options"] == {"proximal": 1.0}  # the first of two equals
    assert [tried["accuracy"] for tried in entry["tried"]] == [0.4, 0.5, 0.5]
    chosen = chosen_options(tmp_path)
    cell = Cell("label-cifar10", "standard-iid", "fedprox", "cifar10-iid")
    assert cell.config(chosen(cell)).options["proximal"] == 1.0
    assert chosen(Cell("label-cifar10", "standard-iid", "fedavg", "cifar10-iid")) == {}
    assert chosen(first) == {}  # a candidate stays what it is


def test_a_choice_for_one_preset_is_for_no_other(tmp_path: Path) -> None:
    pretend(tmp_path, pilot_cell("cifar10-iid"), [1, 1], mixing={"norms": [[3.0, 5.0], [4.0, 6.0]]})
    write_choices(tmp_path)
    chosen = chosen_options(tmp_path)
    assert chosen(Cell("x", "x", "clustered-fl", "cifar10-iid")) == {"eps1": 0.4, "eps2": 0.4}
    assert chosen(Cell("x", "x", "clustered-fl", "cifar10-non-iid")) == {}


def test_settings_of_a_cell_stand_above_choices() -> None:
    cell = Cell("x", "x", "factorized-fl", "cifar10-iid", settings={"tau": 0.1})
    config = cell.config({"tau": 0.7, "epsilon": 3.0})
    assert (config.options["tau"], config.options["epsilon"]) == (0.1, 3.0)


@pytest.mark.usefixtures("tiny_studies")
def test_candidates_are_scored_on_validation_images(images: Path, tmp_path: Path, monkeypatch) -> None:
    """Shown by a split whose validation and test parts differ in size."""
    from factorized_fl.data import scenarios

    whole = scenarios.split

    def uneven(domain, share, rng):
        train, validation, test = whole(domain, share, rng)
        return train, validation[:5], test

    monkeypatch.setattr(scenarios, "split", uneven)
    scored = {}
    for score in ("test", "validation"):
        cell = Cell("choices", "choices", "fedavg", "tiny", variant=score, settings={"score": score, "rounds": 1})
        (progress,) = run_cells([cell], tmp_path / "r", data=images, work=tmp_path / "w", device="cpu")
        assert progress.record is not None
        scored[score] = progress.record["clients"]["scored"]
    assert scored == {"test": [12, 12, 16, 16], "validation": [5, 5, 5, 5]}


def test_pilots_norms_are_kept(images: Path, tmp_path: Path, tiny_studies) -> None:
    cell = Cell("choices", "choices", "clustered-fl", "tiny", variant="pilot", settings={"eps1": 0.0})
    (progress,) = run_cells([cell], tmp_path / "r", data=images, work=tmp_path / "w", device="cpu")
    assert progress.record is not None
    norms = progress.record["mixing"]["norms"]
    assert len(norms) == 2
    assert all(0 < mean <= longest for mean, longest in norms)
    assert progress.record["mixing"]["clusters"] == [0, 0, 0, 0]


def test_every_open_option_of_the_paper_is_among_the_choices() -> None:
    cells = STUDIES["choices"].own
    options = {(cell.method, name) for cell in cells for name in cell.settings}
    assert {("fedprox", "proximal"), ("pfedpara", "gamma"), ("per-fedavg", "inner")} <= options
    assert {(m, o) for m in ("factorized-fl", "factorized-fl-beta") for o in ("tau", "epsilon")} <= options
    assert sum(cell.variant == "pilot" for cell in cells) == 9


@pytest.mark.usefixtures("tiny_studies")
def test_what_is_chosen_counts_for_the_studies_after_it(images: Path, tmp_path: Path, monkeypatch) -> None:
    family = Family("factorized-fl", "tiny", 1, ({"tau": 0.125}, {"tau": 0.25}))
    monkeypatch.setattr(jobs, "FAMILIES", (family,))
    monkeypatch.setattr(jobs, "PILOT_PRESETS", ())
    monkeypatch.setitem(grid.STUDIES, "choices", Study("choices", "tiny", tuple(family.cells())))
    options = {"data": images, "work": tmp_path / "w", "device": "cpu"}
    with pytest.warns(UserWarning, match=r"not chosen for factorized-fl on tiny: the preset's values are used\."):
        list(run_studies(["domains"], tmp_path / "r", clock=Clock(0), **options))
    ran = list(run_studies(["ablation", "choices"], tmp_path / "r", **options))
    assert [progress.name.split("/")[0] for progress in ran] == ["choices", "choices", "domains", "ablation"]
    (made,) = json.loads((tmp_path / "r" / "choices.json").read_text())["chosen"]
    result = ran[-1].record
    assert result is not None
    assert result["configuration"]["options"]["tau"] == 1.0  # the cell's own setting stands
    (alone,) = run_studies(["domains"], tmp_path / "r", methods=["factorized-fl"], seeds=[1], **options)
    assert alone.record is not None
    assert alone.record["configuration"]["options"]["tau"] == made["options"]["tau"]
