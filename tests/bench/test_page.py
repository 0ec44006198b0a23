"""Differences, verdicts and the page of benchmarks, from result files written by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from factorized_fl.bench.differences import Gap, control_entry, judge, read_results
from factorized_fl.bench.page import page, suite_section
from factorized_fl.bench.suites import Suite, make_cell, read_suites
from factorized_fl.bench.words import entry_title, in_points
from factorized_fl.results.right import Graded, pack_graded
from factorized_fl.results.statistic import Estimate

ROOT = Path(__file__).parents[2]
SETTINGS = {"clients": 6, "test_every": 100}


def suite(name: str, *entries: str) -> Suite:
    tuning = {"rates": [0.01, 0.02]}
    return Suite(name, "demo", entries, (1, 2, 3), SETTINGS, tuning=tuning)


def write(
    of: Suite, out: Path, entry: str, seed: int, right: list[int], *, bits: bool = False, activated: bool | None = None
) -> None:
    """Write the result of a run with so many right answers of 100 by each client; three domains of two clients."""
    cell = make_cell(of, entry, seed)
    clients = [
        {"domain": f"d{k * 3 // len(right)}", "loss": 1.0}
        | {"recalibrated": {"test": [count, 100]}, "plain": {"test": [count - 10, 100]}}
        for k, count in enumerate(right)
    ]
    path = cell.path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    marks = {k: np.arange(100, dtype=np.int32) + 1000 * seed for k in range(len(right))}
    graded = {k: Graded(np.arange(100) < count, marks[k]) for k, count in enumerate(right)}
    record = {
        "entry": entry,
        "seed": seed,
        "commit": "abc",
        "machine": {"date": f"2026-01-0{seed}T03"},
        "seconds": 60.0,
    }
    record |= {"configuration": json.loads(json.dumps(cell.config.__dict__ | {"options": dict(cell.config.options)}))}
    record |= {"up_bytes": 1e6, "down_bytes": 1e6, "activated": activated, "clients": clients}
    path.write_text(json.dumps(record | {"right": pack_graded(graded, path.parent) if bits else []}))


def test_differences_by_hand(tmp_path: Path) -> None:
    one = suite("one", "stand-alone", "factorized-peers", "stand-alone:oracle=centralised")
    for seed in (1, 2, 3):
        write(one, tmp_path, "stand-alone", seed, [50] * 6)
        write(one, tmp_path, "factorized-peers", seed, [90, 90, 70, 70, 60, 60])
        write(one, tmp_path, "stand-alone:oracle=centralised", seed, [80, 60, 60])
    found = read_results(one, tmp_path)
    assert found.mean("factorized-peers") == pytest.approx(22 / 30)
    assert found.mean("factorized-peers", "plain") == pytest.approx(19 / 30)
    gap = found.difference("factorized-peers", "stand-alone")
    assert gap is not None
    assert (gap.seeds, gap.estimate.value) == (3, pytest.approx(7 / 30))
    pooled = found.difference("factorized-peers", "stand-alone:oracle=centralised")  # each pool stands for two clients
    assert pooled is not None
    assert pooled.estimate.value == pytest.approx(2 / 30)
    assert found.difference("stand-alone", "stand-alone") is None
    assert found.difference("stand-alone", "fedavg") is None


def test_answers_to_the_same_images_are_compared_in_pairs(tmp_path: Path) -> None:
    """Both are right in the same 50 of 100 images, so the bits give a smaller error than the counts."""
    errors = []
    for name, bits in (("bits", True), ("counts", False)):
        one = suite(name, "stand-alone", "factorized-peers")
        for entry in one.entries:
            write(one, tmp_path, entry, 1, [50], bits=bits)
        gap = read_results(one, tmp_path).difference("factorized-peers", "stand-alone")
        assert gap is not None
        errors.append(gap.estimate.error)
    assert errors[0] == pytest.approx(0.01)  # one discordant image of 100
    assert errors[1] > 5 * errors[0]


def test_verdicts_correct_for_all_comparisons_of_several_seeds() -> None:
    sure, likely, seedless = Estimate(0.1, 0.01), Estimate(-0.022, 0.01), Estimate(0.1, 0.001)  # likely: p = 0.028
    gaps = {("s", "sure"): Gap(sure, 3), ("s", "likely"): Gap(likely, 3), ("s", "one"): Gap(seedless, 1)}
    found = judge(gaps)
    assert [gap.verdict for gap in found.values()] == ["better", "worse", "undecided"]
    more = judge(gaps | {("s", "third"): Gap(Estimate(0.0, 0.01), 3), ("s", "none"): None})
    assert more["s", "likely"].verdict == "undecided"  # 2 x 0.028
    assert ("s", "none") not in more
    assert [in_points(gap) for gap in (None, *found.values())] == [
        "-",
        "+10.0 ± 2.0 **better**",
        "-2.2 ± 2.0 **worse**",
        "+10.0 ± 0.2 (1 seed)",
    ]


def test_entries_have_titles() -> None:
    assert entry_title("fedavg:oracle=groups") == "FedAvg (true groups)"
    assert entry_title("fedrep:control=true") == "FedRep (each client alone)"
    assert entry_title("factorized-fl:epsilon=2:oracle=aligned:tau=0.3") == (
        "Factorized-FL (epsilon=2, tau=0.3) (true groups and classes)"
    )


def test_controls_are_those_of_the_cards() -> None:
    assert control_entry("fedavg:oracle=groups") == control_entry("pacfl") == "stand-alone"
    assert control_entry("factorized-peers") == control_entry("factorized-fl-beta") == "factorized-fedavg:control=true"
    assert control_entry("ditto") == control_entry("ditto:control=true") == "ditto:control=true"


def test_the_page_answers_and_says_what_is_missing(tmp_path: Path) -> None:
    one = suite("one", "stand-alone", "factorized-peers", "fedbn", "fedrep", "pacfl", "clustered-fl")
    other = suite("other", "stand-alone", "fedbn")
    assert "There is no answer yet: no run is done." in page(tmp_path, [one, other])
    for seed in (1, 2, 3):
        write(one, tmp_path, "stand-alone", seed, [60] * 6)
        write(one, tmp_path, "factorized-peers", seed, [90] * 6)
        write(one, tmp_path, "fedbn", seed, [30] * 6)
        write(one, tmp_path, "fedrep", seed, [99] * 6)
    write(one, tmp_path, "clustered-fl", 1, [100] * 6, activated=False)
    text = page(tmp_path, [one, other])
    for line in (
        "    - Compared with Stand-Alone, of 3 methods 2 are better (FedRep and Factorized-Peers), 1 is worse (FedBN); "
        "none are not decided.",
        "    - Compared with their controls, which shows what the other clients add, of 1 method none are better, 1 is "
        "worse (FedBN); none are not decided.",
        "As of 2026-01-03, the day of the last run on this page:",
        "- one, recalibrated: better than FedBN; worse than FedRep.",
        "- No answer yet for other: no such run is done.",
        "- one: worse than Stand-Alone: FedBN.",
        "- one: did not activate, so its results are not evidence for it: Clustered-FL (1 run).",
        "- one: 5 of 18 runs are missing: PACFL and Clustered-FL.",
        "- other: none of 6 runs is done.",
        "- one: not tuned to the end, so with the usual rate: Stand-Alone, Factorized-Peers, FedBN, FedRep and "
        "Clustered-FL.",
    ):
        assert line in text.splitlines()
    assert "| one | FedRep, 99.0 | +39.0 ± " in text  # the best, not Clustered-FL with its single seed
    rows = [line for line in suite_section(one, tmp_path).splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows[2:]] == [
        "| FedRep",
        "| Factorized-Peers",
        "| Stand-Alone",
        "| FedBN",
        "| Clustered-FL (did not activate)",
    ]
    assert suite_section(one, tmp_path) in text
    assert suite_section(other, tmp_path) == "other: no run is done.\n"


def test_the_page_of_the_package_is_what_its_results_give() -> None:
    """If it is not: `ffl bench --page docs/benchmarks.md`."""
    written = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert written == page(ROOT / "results" / "bench", list(read_suites().values()))
