"""The numbers in docs/classes.md are those of results/align/."""

import json
from dataclasses import replace
from pathlib import Path

import torch

from factorized_fl.bench.cells import Place, run_or_read
from factorized_fl.bench.suites import Cell
from factorized_fl.core.classes import Matches
from factorized_fl.simulate.alignment import judge_matches
from studies.alignment import collect, matching_lines, run_lines, score
from tests.tiny import tiny_config

ROOT = Path(__file__).parents[2]


def test_the_documentation_has_the_measured_numbers() -> None:
    record = json.loads((ROOT / "results" / "align" / "matching.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "classes.md").read_text(encoding="utf-8").splitlines()
    lines = matching_lines(record) + run_lines(ROOT / "results" / "align")
    assert len(lines) > 15
    assert [line for line in lines if line not in text] == []


def test_a_record_of_a_benchmark_becomes_a_row_of_the_table(images: Path, tmp_path: Path) -> None:
    """Two runs as `ffl bench` keeps them, without and with the true matches."""
    for align in ("off", "true"):
        config = replace(tiny_config("fedavg", align=align, rounds=2, recalibrate=True), preset="tiny")
        place = Place(tmp_path / "in", tmp_path / "work", images, "cpu")
        run_or_read(Cell("suite", f"fedavg-{align}", 1, config), place)
    assert collect(tmp_path / "in", tmp_path / "out") == ["tiny-fedavg-off-1", "tiny-fedavg-true-1"]
    without, with_true = run_lines(tmp_path / "out")
    assert without.startswith("| `tiny` | fedavg | off |")
    assert with_true.endswith(" | 100% / 100% | 1 |")
    record = json.loads((tmp_path / "out" / "tiny-fedavg-true-1.json").read_text(encoding="utf-8"))
    assert record["matches"] == {"same": 8, "matched": 8, "right": 8}


def test_a_score_counts_pairs_of_classes_of_different_clients() -> None:
    """Two matched pairs are wrong, and both are of the client that is not sure."""
    truth = torch.tensor([[0, 1], [1, 0], [0, -1]])
    labels = torch.tensor([[5, 6], [6, 5], [6, -1]])
    sure = torch.tensor([[0.9, 0.9], [0.9, 0.9], [0.2, 0.0]], dtype=torch.float64)
    found = score(Matches(labels, sure), truth)
    assert found["same"] == 4
    assert found["0"] == {"matched": 4, "right": 2}
    assert judge_matches(labels, truth) == {"same": 4, "matched": 4, "right": 2}
    assert found["0.5"] == {"matched": 2, "right": 2}
