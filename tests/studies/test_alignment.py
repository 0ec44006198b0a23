"""The numbers in docs/classes.md are those of results/align/."""

import json
from pathlib import Path

import torch

from factorized_fl.core.classes import Matches
from studies.alignment import matching_lines, run_lines, score

ROOT = Path(__file__).parents[2]


def test_the_documentation_has_the_measured_numbers() -> None:
    record = json.loads((ROOT / "results" / "align" / "matching.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "classes.md").read_text(encoding="utf-8").splitlines()
    lines = matching_lines(record) + run_lines(ROOT / "results" / "align")
    assert len(lines) > 15
    assert [line for line in lines if line not in text] == []


def test_a_score_counts_pairs_of_classes_of_different_clients() -> None:
    """Two matched pairs are wrong, and both are of the client that is not sure."""
    truth = torch.tensor([[0, 1], [1, 0], [0, -1]])
    labels = torch.tensor([[5, 6], [6, 5], [6, -1]])
    sure = torch.tensor([[0.9, 0.9], [0.9, 0.9], [0.2, 0.0]], dtype=torch.float64)
    found = score(Matches(labels, sure), truth)
    assert found["same"] == 4
    assert found["0"] == {"matched": 4, "right": 2}
    assert found["0.5"] == {"matched": 2, "right": 2}
