"""What our own method has to show, from results that nobody ran."""

from pathlib import Path
from statistics import fmean

import pytest

from studies.paper.findings import Gains, gains
from studies.paper.table import collect
from tests.studies.fake import factors, mixing, page, write

PEERS = "factorized-peers"


def points_of(one: Gains) -> list[float]:
    return [gain for some in one.points.values() for gain in some]


def harmed(one: Gains) -> int:
    return sum(gain < -1 - 1e-9 for gain in points_of(one))


def test_gains_are_client_by_client_and_the_least_of_them_counts(tmp_path: Path) -> None:
    """Everybody gains 5 points but one client of the second seed, which loses 3; it stands in the last domain."""
    for seed, last in ((1, 65.0), (2, 57.0)):
        write(tmp_path, "domains", "stand-alone", [60.0] * 20, seed=seed)
        write(tmp_path, "beyond", PEERS, [*[65.0] * 19, last], setting="domains", seed=seed, mixing=mixing(20))
    (one,) = gains(collect(tmp_path))
    assert (one.setting, one.over, tuple(run.seed for run, _ in one.pairs)) == ("domains", "Stand-Alone", (1, 2))
    assert fmean(points_of(one)) == pytest.approx(5 - 8 / 40)
    assert min(map(fmean, one.points.values())) == pytest.approx(5 - 8 / 8)
    assert min(points_of(one)) == pytest.approx(-3)
    assert (harmed(one), len(points_of(one))) == (1, 40)
    text = page(collect(tmp_path))
    assert "| Factorized-Peers, domains | Stand-Alone | 1, 2 | +4.80 | +4.00 | -3.00 | 1 of 40 | 0.750 |" in text


def test_a_client_with_random_labels_does_not_count_and_the_others_are_held_against_the_run_without_it(
    tmp_path: Path,
) -> None:
    setting = "domains-random-labels"
    write(tmp_path, "domains", "stand-alone", [60.0] * 20)
    write(tmp_path, "beyond", PEERS, [*[64.0] * 19, 10.0], setting=setting, mixing=mixing(20))
    write(tmp_path, "beyond", PEERS, [64.5] * 20, setting="domains", mixing=mixing(20))
    _, alone, undisturbed = gains(collect(tmp_path))
    assert (alone.over, len(points_of(alone)), harmed(alone)) == ("Stand-Alone", 19, 0)
    assert min(points_of(alone)) == pytest.approx(4)
    assert undisturbed.over == "the same without random labels"
    assert fmean(points_of(undisturbed)) == pytest.approx(-0.5)


def test_what_recalibration_alone_gives_and_notes_on_results_are_written(tmp_path: Path) -> None:
    write(tmp_path, "beyond", "stand-alone+recalibrated", [63.0] * 20, setting="domains")
    write(tmp_path, "beyond", PEERS, [65.0] * 20, setting="domains", mixing=mixing(20), note="made by hand")
    (one,) = gains(collect(tmp_path))
    assert (one.over, fmean(points_of(one))) == ("Stand-Alone (statistics recalibrated)", pytest.approx(2))
    assert "\nFactorized-Peers, domains, seed 1: made by hand.\n" in page(collect(tmp_path))


def test_a_note_of_several_results_is_told_once_and_not_cell_by_cell_if_it_is_of_all(tmp_path: Path) -> None:
    for method, setting, seed in (
        ("fedavg", "standard-iid", 1),
        ("fedavg", "standard-iid", 2),
        ("fedprox", "permuted-iid", 1),
    ):
        write(tmp_path, "label-svhn", method, [80.0] * 20, setting=setting, seed=seed, note="copies")
    assert "\nAll runs: copies.\n" in page(collect(tmp_path))
    write(tmp_path, "label-svhn", "stand-alone", [80.0] * 20, setting="permuted-iid")
    named = "FedAvg, standard-iid, seeds 1, 2; FedProx, permuted-iid, seed 1"
    assert f"\n{named}: copies.\n" in page(collect(tmp_path))


def test_a_client_that_loses_a_point_and_no_more_is_not_harmed(tmp_path: Path) -> None:
    write(tmp_path, "domains", "stand-alone", [60.0] * 20)
    write(tmp_path, "beyond", PEERS, [59.0] * 20, setting="domains", mixing=mixing(20))
    (one,) = gains(collect(tmp_path))
    assert harmed(one) == 0


def test_what_is_sent_to_be_matched_is_what_goes_up_only(tmp_path: Path) -> None:
    def sent(up: int) -> dict:
        return {"up": 0, "down": 0, "formula_a": 1, "formula_b": 1, "up_per_round": [up], "down_per_round": [1000]}

    write(tmp_path, "beyond", PEERS, [65.0] * 20, setting="domains", mixing=mixing(20), bytes=sent(11_000))
    assert "For matching, a client" not in page(collect(tmp_path))
    alike = factors(20, grouped=False)
    write(tmp_path, "domains", "factorized-fl", [63.0] * 20, bytes=sent(5_001_000), factors=alike)
    text = page(collect(tmp_path))
    assert "a client sends 500 B in a round; with Factorized-FL it sends 250.0 kB." in text


def test_where_all_are_alike_the_weight_on_oneself_is_told(tmp_path: Path) -> None:
    for seed, own in ((1, 0.25), (2, 0.5)):
        shares = mixing(4) | {"own": [own]}
        write(tmp_path, "beyond", PEERS, [70.0] * 4, setting="permuted-iid", seed=seed, mixing=shares)
    assert "a client gives 0.375 of the weight to itself; equal weights for all would be 0.250." in page(
        collect(tmp_path)
    )
