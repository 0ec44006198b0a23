"""What runs gained over reference runs, from run directories."""

from pathlib import Path

import numpy as np
import pytest

from factorized_fl.results.effect import CONTROL, measure_effect
from factorized_fl.results.reading import RunFiles, read_run
from factorized_fl.simulate.run import run_federation
from tests.report.synthetic import write_run
from tests.tiny import tiny_config, tiny_scenario


def a_run(path: Path, method: str, correct: list[int], **settings: int) -> RunFiles:
    return read_run(write_run(path, method, clients=len(correct), correct=correct, **settings), strict=True)


def real_run(path: Path, **settings: object) -> RunFiles:
    config = tiny_config("fedavg", rounds=2, **settings)
    return read_run(run_federation(config, path, scenario=tiny_scenario(config)).path)


def test_three_seeds_decide_and_one_does_not(tmp_path: Path) -> None:
    alone = [a_run(tmp_path / f"alone{seed}", "stand-alone", [50, 50, 50, 50], seed=seed) for seed in (1, 2, 3)]
    ours = [a_run(tmp_path / f"ours{seed}", "fedavg", [90, 50, 10, 51], seed=seed) for seed in (1, 2, 3)]
    found = measure_effect(ours, alone)
    assert found is not None
    assert [v.word for v in found.clients] == ["helped", "undecided", "harmed", "undecided"]
    assert (found.names("helped"), found.number("harmed"), found.reference) == ([1], 1, "stand-alone")
    assert found.sentence.startswith("+0.2 points (95% interval ")
    assert found.sentence.endswith(
        "over Stand-Alone, 3 seeds: of 4 clients it helped 1 (1) and harmed 1 (3); 2 undecided."
    )
    once = measure_effect(ours[:1], alone[:1])
    assert once is not None
    assert once.number("undecided") == 4
    assert once.sentence.endswith("One seed cannot decide: other seeds may give another sign.")
    assert once.record()["clients"][0]["client"] == 1


def test_the_bits_of_two_runs_are_paired(tmp_path: Path) -> None:
    """Two runs that differ by one image have a smaller error than independent tests with the same counts."""
    ours, control = real_run(tmp_path / "ours"), real_run(tmp_path / "control", control=True)
    found = measure_effect([ours], [control], CONTROL)
    assert found is not None
    (ours.path / "right.safetensors").write_bytes(b"no bits")
    without = measure_effect([ours], [control], CONTROL)
    assert without is not None
    assert without.mean == pytest.approx(found.mean)
    assert np.mean([v.margin for v in found.clients]) < np.mean([v.margin for v in without.clients])
    assert [note for note in ours.notes if "tests are compared by their counts" in note]


def test_bits_of_another_test_are_not_used(tmp_path: Path) -> None:
    ours, control = real_run(tmp_path / "ours"), real_run(tmp_path / "control", control=True)
    right = (control.path / "right.safetensors").read_bytes()
    (ours.path / "right.safetensors").write_bytes(right)
    found, same = measure_effect([ours], [control], CONTROL), measure_effect([control], [control], CONTROL)
    assert found is not None
    assert same is not None
    assert same.mean == 0.0
    assert found.mean == pytest.approx(np.mean([v.accuracy - v.reference for v in found.clients]))
    assert found.mean != 0.0


def test_only_clients_of_both_runs_are_compared(tmp_path: Path) -> None:
    two, one = a_run(tmp_path / "two", "fedavg", [50, 50]), a_run(tmp_path / "one", "stand-alone", [50])
    found = measure_effect([two], [one])
    assert found is not None
    assert len(found.clients) == 1
    assert found.sentence.startswith("+0.0 points (95% interval -")
    one.metrics.clear()
    one.summary = None
    assert measure_effect([two], [one]) is None
