from pathlib import Path

import numpy as np
import pytest

from factorized_fl.core.seeds import numpy_rng
from studies.paper.permutation import LabelStatistic, nearest_share, permutation_p_value, within_excess
from studies.paper.table import Run, collect
from tests.studies.fake import factors, write

# Two and two: the first two are close to each other, the last two are not.
COSINES = np.array([[1, 0.9, 0.2, 0.1], [0.9, 1, 0.3, 0.2], [0.2, 0.3, 1, 0.1], [0.1, 0.2, 0.1, 1]])
DEALS = np.array([[0, 0, 1, 1], [0, 1, 0, 1]])


def chance(runs: list[Run], factor: str, statistic: LabelStatistic) -> float:
    return permutation_p_value(
        [
            (
                np.array(list(run.record["factors"][factor]["matrices"].values())[-1]),
                run.domains,
                numpy_rng(run.seed, "deals", factor),
            )
            for run in runs
        ],
        statistic,
    )


def test_statistics_of_each_deal() -> None:
    # The nearest are 1, 0, 1 and 1: by the first deal two are of the own domain, by the second that of the last client.
    assert nearest_share(COSINES, DEALS).tolist() == [0.5, 0.25]
    # Within: 0.9 and 0.1, between: 0.2, 0.1, 0.3, 0.2; then 0.2 and 0.2, between: 0.9, 0.1, 0.3, 0.1.
    assert within_excess(COSINES, DEALS).tolist() == pytest.approx([0.5 - 0.2, 0.2 - 0.35])


def test_groups_are_told_from_chance(tmp_path: Path) -> None:
    write(tmp_path, "domains", "factorized-fl", [60.0] * 20, factors=factors(20, True))
    runs = collect(tmp_path).of("domains", "domains", "factorized-fl")
    for statistic in (nearest_share, within_excess):
        assert chance(runs, "v", statistic) < 0.001  # grouped by domain
        assert chance(runs, "u", statistic) > 0.95  # grouped across domains
    write(tmp_path, "domains", "factorized-fl", [60.0] * 5, factors=factors(5, True))
    assert chance(collect(tmp_path).of("domains", "domains", "factorized-fl"), "v", within_excess) == 1.0


def test_the_same_results_have_the_same_chance(tmp_path: Path) -> None:
    shown = np.random.default_rng(1).uniform(size=(20, 20)).round(6)
    rounds = factors(20, True)
    rounds["v"]["matrices"] = {"5": ((shown + shown.T) / 2).tolist()}
    write(tmp_path, "domains", "factorized-fl", [60.0] * 20, factors=rounds)
    first, second = (
        chance(collect(tmp_path).of("domains", "domains", "factorized-fl"), "v", nearest_share) for _ in range(2)
    )
    assert first == second
    assert 0.001 < first < 1


def test_labels_without_a_pair_are_never_beyond_chance() -> None:
    samples = [(np.eye(3), ["a", "b", "c"], np.random.default_rng(1))]
    assert permutation_p_value(samples, within_excess) == 1.0
