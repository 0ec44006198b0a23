from functools import partial
from pathlib import Path

import pytest

from studies.paper.table import Compared, Run, Table, collect, mean_of, reconstructed
from tests.studies import fake
from tests.studies.fake import factors

write = partial(fake.write, images=1000)
KEYS = (("domains", "domains", "one"), ("domains", "domains", "other"))


def difference(
    one: list[Run],
    other: list[Run],
    after: int | None = None,
    between_seeds: float = 0.0,
    printed: tuple[list[Run], list[Run]] = ([], []),
    domain: str | None = None,
) -> Compared | None:
    """Of two cells with nothing beside them."""
    cells, replaced = (dict(zip(KEYS, runs, strict=True)) for runs in ((one, other), printed))
    return Table(cells, between_seeds=between_seeds, printed=replaced).compare(*KEYS, after, domain)


def test_mean_and_spread_over_seeds_and_domains(tmp_path: Path) -> None:
    for seed, shift in ((2, 2.0), (10, 0.0)):
        write(tmp_path, "domains", "fedavg", [50 + shift, 60 + shift, 70, 80, 90], seed=seed)
    runs = collect(tmp_path).of("domains", "domains", "fedavg")
    assert [run.seed for run in runs] == [2, 10]
    whole = mean_of(runs)
    assert whole is not None
    assert whole.value == pytest.approx(70.4)
    assert whole.spread == pytest.approx(0.8 / 2**0.5)
    household = mean_of(runs, domain="household")
    assert household is not None
    assert household.value == pytest.approx(51)
    first = mean_of(runs, after=1)
    assert first is not None
    assert (first.value, first.spread) == (pytest.approx(10), pytest.approx(0))
    assert mean_of(collect(tmp_path).of("domains", "domains", "fedprox")) is None
    assert mean_of(runs, "gigabytes") == (3.0, 0.0)
    assert mean_of(runs, "formula_a") == (pytest.approx(20.388), pytest.approx(0))


def test_every_client_has_its_own_best_round(tmp_path: Path) -> None:
    """Best are 30%, 50% and 20%; the fifth client was never tested."""
    rounds = [[300, 100, None, 0, None], [200, 500, 200, 0, None]]
    write(tmp_path, "domains", "fedavg", [0.0] * 5, correct=rounds)
    assert mean_of(collect(tmp_path).of("domains", "domains", "fedavg"), "best") == (pytest.approx(100 / 4), None)
    assert mean_of([], "best") is None


def test_difference_is_paired_by_client_and_seed(tmp_path: Path) -> None:
    write(tmp_path, "domains", "fedavg", [50, 60, 70, 80, 90])
    write(tmp_path, "domains", "stand-alone", [48, 59, 67, 79, 87])
    found = collect(tmp_path)
    gap = difference(found.of("domains", "domains", "fedavg"), found.of("domains", "domains", "stand-alone"))
    assert gap is not None
    # The images that differ in two independent tests of 1,000, and one more for each client.
    error = 100 * (500 + 482 + 432 + 326 + 204 + 5) ** 0.5 / 5000
    assert (gap.difference.value, gap.difference.error, gap.seeds) == (pytest.approx(2), pytest.approx(error), (1,))
    assert gap.difference.low > 0
    assert str(gap) == "+2.00 points, standard error 0.88, seed 1"
    back = difference(found.of("domains", "domains", "stand-alone"), found.of("domains", "domains", "fedavg"))
    assert back is not None
    assert back.difference.high < 0


def test_seeds_that_disagree_make_the_error_larger(tmp_path: Path) -> None:
    for seed, shift in ((1, 1), (2, 5)):
        write(tmp_path, "domains", "fedavg", [50 + shift] * 5, seed=seed)
        write(tmp_path, "domains", "stand-alone", [50] * 5, seed=seed)
    write(tmp_path, "domains", "stand-alone", [1] * 5, seed=3)  # which the other has not
    found = collect(tmp_path)
    gap = difference(found.of("domains", "domains", "fedavg"), found.of("domains", "domains", "stand-alone"))
    assert gap is not None
    # The seeds' means are 1 and 5: standard deviation sqrt(8), divided by sqrt(2). Two seeds: one degree of freedom.
    assert (gap.difference.value, gap.difference.error) == (pytest.approx(3), pytest.approx(2, rel=1e-2))
    assert gap.difference.freedom == pytest.approx(1, rel=0.05)
    assert gap.difference.low < 0


def test_clients_that_share_test_images_count_as_one(tmp_path: Path) -> None:
    """Two of each of five domains, which differ by 2, 1, 3, 1, 3 points each."""
    write(tmp_path, "domains", "fedavg", [50, 50, 60, 60, 70, 70, 80, 80, 90, 90])
    write(tmp_path, "domains", "stand-alone", [48, 48, 59, 59, 67, 67, 79, 79, 87, 87])
    found = collect(tmp_path)
    gap = difference(found.of("domains", "domains", "fedavg"), found.of("domains", "domains", "stand-alone"))
    assert gap is not None
    # Each image that differs counts twice, squared; and one more image for each of ten clients.
    differing = 500 + 482 + 432 + 326 + 204
    assert gap.difference.error == pytest.approx(100 * (4 * differing + 10) ** 0.5 / 10000)


def test_a_single_clients_last_rounds_count_together_and_their_ups_and_downs_as_error(tmp_path: Path) -> None:
    steady = [[100], [540], [540], [540], [540], [540]]
    lively = [[900], [400], [450], [500], [550], [600]]  # the last five: mean 50%, variance 0.0025 / 0.4
    write(tmp_path, "architectures", "stand-alone", [60], setting="resnet9-1fc", correct=lively)
    extra = {"correct": steady, "factors": factors(5, True)}
    write(tmp_path, "architectures", "factorized-fl", [54], setting="resnet9-1fc", **extra)
    found = collect(tmp_path)
    one, other = (found.of("architectures", "resnet9-1fc", row) for row in ("factorized-fl", "stand-alone"))
    alone, early = mean_of(other), mean_of(other, after=1)
    assert alone is not None
    assert early is not None
    assert (alone.value, early.value) == (pytest.approx(50), pytest.approx(90))
    gap = difference(one, other)
    assert gap is not None
    assert gap.difference.value == pytest.approx(4)
    error = 100 * (0.54 * 0.46 / 1000 + 0.5 * 0.5 / 1000 + 0.00625 / 5) ** 0.5
    assert gap.difference.error == pytest.approx(error, rel=1e-3)
    assert gap.difference.low < 0 < gap.difference.high
    at_once = difference(one, other, after=6)
    assert at_once is not None
    error = 100 * (0.54 * 0.46 / 1000 + 0.6 * 0.4 / 1000) ** 0.5
    assert at_once.difference.error == pytest.approx(error, rel=1e-3)
    assert one[0].measure("millions") == pytest.approx(2.283)  # 344 + 270,538 + 2,012,118
    assert other[0].measure("millions") is None


def test_a_single_client_after_few_epochs_is_as_uncertain_as_the_rounds_around_are_uneven(tmp_path: Path) -> None:
    """A steady rise adds nothing; ups and downs of 2 points bend by 2 each time, 1.5 times their variance."""
    place = {"setting": "resnet9-1fc"}
    for percents, error in (([10 * r for r in range(1, 8)], 0.0), ([40, 42, 40, 42, 40, 42, 40], 2 / 1.5**0.5)):
        for method in ("stand-alone", "mixed-layout"):
            more = {"factors": factors(5, True)} if method == "mixed-layout" else {}
            write(tmp_path, "architectures", method, [0], **place, correct=[[10 * p] for p in percents], **more)
        found = collect(tmp_path)
        one, other = (found.of("architectures", "resnet9-1fc", method) for method in ("stand-alone", "mixed-layout"))
        share = percents[3] / 100
        tests = 100 * (share * (1 - share) / 1000) ** 0.5
        gap = difference(one, other, after=4)
        assert gap is not None
        assert gap.difference.error == pytest.approx(2**0.5 * (tests**2 + error**2) ** 0.5, rel=1e-3)


def test_one_seed_that_stands_for_two_is_no_more_certain_than_they_are(tmp_path: Path) -> None:
    write(tmp_path, "label-cifar10", "fedavg", [60.0] * 5, setting="permuted-iid")
    for seed, level in ((1, 64.0), (2, 68.0)):
        more = {"setting": "permuted-iid", "factors": factors(5, True)}
        write(tmp_path, "label-cifar10", "factorized-fl-beta", [level] * 5, seed=seed, **more)
    write(tmp_path, "deviations", "factorized-fl-beta+released", [66.0] * 5, **more)
    found = reconstructed(collect(tmp_path))
    keys = [("label-cifar10", "permuted-iid", method) for method in ("factorized-fl-beta", "fedavg")]
    one, other = (found.of(*key) for key in keys)
    gaps = [difference(one, other), difference(one, other, printed=(found.printed[keys[0]], found.printed[keys[1]]))]
    # All clients share their test images. 468 of 1,000 differ; their variance 0.4644 is part of the seeds'.
    images = 468 / 1000**2 + 5 / 5000**2
    both = images + 0.08 / 100 - 0.4644 / 1000
    assert [gap.difference.error for gap in gaps if gap] == [
        pytest.approx(100 * images**0.5),
        pytest.approx(100 * both**0.5),
    ]


def test_what_differences_vary_by_from_seed_to_seed_is_pooled_and_counts_for_one_seed(tmp_path: Path) -> None:
    """Of two pairs with two seeds one differs by 2 and 6 points, the other by 1 and 1: variances 8 and 0, so 2."""
    place = {"stand-alone": (50, 50), "fedavg": (52, 56), "fedprox": (51, 51)}
    for method, levels in place.items():
        for seed, level in enumerate(levels, start=1):
            write(tmp_path, "domains", method, [float(level)] * 5, seed=seed)
    found = collect(tmp_path)
    # The third pair, FedAvg and FedProx, differs by 1 and 5: 8 once more.
    assert found.between_seeds == pytest.approx((16 / 3) ** 0.5)
    write(tmp_path, "label-cifar10", "fedavg", [60.0] * 5, setting="permuted-iid")
    write(tmp_path, "label-cifar10", "stand-alone", [56.0] * 5, setting="permuted-iid")
    found = collect(tmp_path)
    one, other = (found.of("label-cifar10", "permuted-iid", row) for row in ("fedavg", "stand-alone"))
    gap = difference(one, other, between_seeds=found.between_seeds)
    assert gap is not None
    assert gap.difference.value == pytest.approx(4)
    assert gap.difference.error == pytest.approx((16 / 3) ** 0.5, rel=0.01)
    both = [found.of("domains", "domains", row) for row in ("fedprox", "stand-alone")]
    steady = difference(*both, between_seeds=found.between_seeds)
    assert steady is not None
    assert steady.difference.error == pytest.approx((16 / 3 / 2) ** 0.5, rel=0.01)  # two seeds


def test_a_difference_of_one_domain(tmp_path: Path) -> None:
    write(tmp_path, "domains", "fedavg", [60, 62, *[70.0] * 8])
    write(tmp_path, "domains", "stand-alone", [57, 57, *[90.0] * 8])
    found = collect(tmp_path)
    one, other = (found.of("domains", "domains", row) for row in ("fedavg", "stand-alone"))
    gap = difference(one, other, domain="household")
    assert gap is not None
    # 3 and 5 on the same images: both differ on 258 + 217 of them alike, on nine oppositely, one alone on two.
    error = 100 * (4 * (258 + 217) + 2 + 2) ** 0.5 / 2000
    assert (gap.difference.value, gap.difference.error) == (pytest.approx(4), pytest.approx(error))
