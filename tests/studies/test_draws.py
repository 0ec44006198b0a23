import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from factorized_fl.data.scenarios import build_scenario
from studies.paper import draws
from studies.paper.draws import Predictions, describe_draws, describe_shares
from studies.paper.findings import rows_of
from studies.paper.jobs import files, run_studies
from studies.paper.table import collect
from tests.studies.fake import page, write
from tests.tiny import tiny_config, tiny_set

RESULTS = Path(__file__).parents[2] / "results" / "paper"
STAND_ALONE = ("label-cifar10", "standard-non-iid", "stand-alone")


def test_shares_are_described_by_their_size_and_how_even_they_are() -> None:
    even, uneven = describe_shares(np.array([[50, 50], [7, 0]]))
    assert even.tolist() == pytest.approx([math.log(100), math.log(51)])
    assert uneven.tolist() == pytest.approx([math.log(7), math.log(101) / 2])


def test_every_draw_is_that_of_a_run_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "KEPT", 2)
    images = tiny_set("cifar10", 4, 120)
    config = replace(tiny_config("stand-alone"), dataset="cifar10", partition="dirichlet", clients=3)
    record = describe_draws(images, config, draws=4)
    assert len(record["clients"]) == 2
    assert len(record["means"]) == 4
    shared = {"clients": 3, "partition": "dirichlet", "train_share": config.train_share}
    scenario = build_scenario([images], ((0.5,), (0.5,)), **shared, seed=2)
    sizes = [math.exp(size) for size, _ in record["clients"][1]]
    assert sizes == pytest.approx([len(client.train) for client in scenario.clients], rel=1e-4)
    assert record["means"][1] == pytest.approx(np.mean(record["clients"][1], axis=0), abs=1e-4)


def test_the_shares_described_are_those_of_the_runs_kept() -> None:
    found = collect(RESULTS)
    for what, setting in (("label-cifar10", "standard-non-iid"), ("label-svhn", "permuted-non-iid")):
        (result,) = found.of(what, setting, "stand-alone")
        described = found.draws[what.removeprefix("label-")]["clients"][0]
        assert [round(math.exp(size)) for size, _ in described] == result.record["clients"]["train"]


def put(results: Path, shares: list[list[list[float]]], means: list[list[float]]) -> None:
    path = results / "draws" / "cifar10.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"clients": shares, "means": means}))


FIRST = [[6.0, 1.0], [7.0, 1.0], [6.0, 3.0], [7.0, 3.0]]
SECOND = [[6.0, 1.0], [6.0, 2.0], [8.0, 2.0], [8.0, 3.0]]


def accuracies(shares: list[list[float]]) -> list[float]:
    """Exactly on a plane: a point for each unit of size, ten for each of evenness."""
    return [20 + size + 10 * even for size, even in shares]


def test_what_lies_on_a_plane_is_predicted_exactly(tmp_path: Path) -> None:
    """Over draws the means are 46.5, 47 and 57.7: for draws of mean (6.5, 2), (7, 2) and (7.7, 3)."""
    put(tmp_path, [FIRST, SECOND], [[6.5, 2.0], [7.0, 2.0], [7.7, 3.0]])
    write(tmp_path, "label-cifar10", "stand-alone", accuracies(FIRST), setting="standard-non-iid")
    assert Predictions(collect(tmp_path)).of(STAND_ALONE) is None  # nothing says how far it may be off
    write(tmp_path, "deviations", "stand-alone+draw=2", accuracies(SECOND), setting="standard-non-iid")
    predictions = Predictions(collect(tmp_path))
    assert [(one.draw, round(one.seen, 6), round(one.predicted, 6)) for one in predictions.left_out] == [
        (1, 46.5, 46.5),
        (2, 47.0, 47.0),
    ]
    assert predictions.error() == pytest.approx(0, abs=1e-9)
    told = predictions.of(STAND_ALONE)
    assert told is not None
    means = [46.5, 47.0, 57.7]
    assert (told.mean, told.spread, told.poorer) == pytest.approx((np.mean(means), np.std(means, ddof=1), 0.0))
    (one,) = (one for one in predictions.beside_published() if one.key == STAND_ALONE)
    assert (one.paper, one.predicted) == (47.79, told)


def test_errors_on_draws_left_out_widen_the_spread(tmp_path: Path) -> None:
    """The second draw turns out two points better than the first one says, and the first two worse."""
    put(tmp_path, [FIRST, SECOND], [[6.5, 2.0], [6.5, 2.0], [6.4, 2.0]])
    write(tmp_path, "label-cifar10", "stand-alone", accuracies(FIRST), setting="standard-non-iid")
    better = [accuracy + 2 for accuracy in accuracies(SECOND)]
    write(tmp_path, "deviations", "stand-alone+draw=2", better, setting="standard-non-iid")
    predictions = Predictions(collect(tmp_path))
    assert [round(one.seen - one.predicted, 6) for one in predictions.left_out] == [-2.0, 2.0]
    told = predictions.of(STAND_ALONE)
    assert told is not None
    assert told.spread == pytest.approx(2.0, abs=0.01)
    assert told.poorer == pytest.approx(1 / 3)
    text = page(collect(tmp_path))
    assert "| standard-non-iid | Stand-Alone | 2 | 49.00 | 47.00 |" in text
    # Without looking at shares one would miss 46.5 against 49 both times.
    assert (
        "The root mean square of these errors is 2.00 points; that of the differences between the draws is 2.50."
        in text
    )
    # 47.79 is published, and 47.35 is the mean over draws.
    assert "Stand-Alone is off by +0.2 (cifar10 standard-non-iid) standard deviations." in text


def test_other_runs_do_not_count(tmp_path: Path) -> None:
    """Neither equal shares, nor a draw nobody described, nor other numbers of clients."""
    put(tmp_path, [FIRST], [[6.5, 2.0]])
    write(tmp_path, "label-cifar10", "stand-alone", accuracies(FIRST), setting="standard-iid")
    write(tmp_path, "deviations", "stand-alone+draw=2", accuracies(SECOND), setting="standard-non-iid")
    write(tmp_path, "label-cifar10", "fedavg", [50.0] * 5, setting="standard-non-iid")
    assert not Predictions(collect(tmp_path)).drawn
    rows = rows_of("draws", collect(tmp_path))
    assert len(rows) == 4 * 9 + 4 * 4  # nine methods in four settings, four of them once more as reconstructed
    assert all(row.ours is None and row.paper is not None for row in rows)
    assert all(row.setting.endswith(", predicted") for row in rows)  # nobody is to take it for measured


def test_the_study_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "DATASETS", ("cifar10",))
    monkeypatch.setattr(draws, "load", lambda dataset, data: [tiny_set("cifar10", 4, 120)])
    monkeypatch.setattr(draws, "DRAWS", 3)
    assert [(one.name, one.state) for one in run_studies(["draws"], tmp_path)] == [("draws/cifar10", "done")]
    assert len(collect(tmp_path).draws["cifar10"]["means"]) == 3
    assert [one.state for one in run_studies(["draws"], tmp_path)] == ["was done"]
    assert files(["draws"], tmp_path) == [tmp_path / "draws" / "cifar10.json"]
