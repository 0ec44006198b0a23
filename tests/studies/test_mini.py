"""The page about miniatures is what results give; the study of options compares each choice with the defaults."""

import json
from pathlib import Path
from statistics import fmean

import pytest
import torch

from factorized_fl.bench.cells import Place, read_cell, run_cells
from factorized_fl.bench.suites import read_suites
from studies.mini.former_cnn import FormerCNN
from studies.mini.options import OPTIONS, SEEDS, planned, write_options
from studies.mini.show import PAGE, QUESTIONS, ROOT, _options, shown

FEDFOMO = json.loads((ROOT / "results" / "mini" / "fedfomo-digits.json").read_text(encoding="utf-8"))


def test_the_page_is_what_the_results_give() -> None:
    """If it is not: `python -m studies.mini show`."""
    text = PAGE.read_text(encoding="utf-8")
    assert text == shown(text)
    assert shown(text.replace("| Factorized-FL over its control |", "| |")) == text
    for network, found in FEDFOMO.items():
        for choice, kinds in found["statistics"].items():
            numbers = (f"{kinds[kind]['mean']:.1f}" for kind in ("recalibrated", "plain"))
            assert f"| {network} | {choice} | {' | '.join(numbers)} |" in text


def test_the_questions_compare_entries_of_the_suite() -> None:
    compared = {entry for pairs in QUESTIONS.values() for pair in pairs for entry in pair}
    assert compared <= set(read_suites()["mini-domains"].entries)
    controls = [pair[1] for pair in QUESTIONS["Does aggregation help?"]]
    assert controls == ["stand-alone", *4 * ["factorized-fedavg:control=true"]]


def test_fedfomo_is_where_foreign_code_is() -> None:
    """Four seeds on digits-iid, with the network and the recalibration of that measurement: 71 points."""
    found = FEDFOMO["cnn of commit 3a531ae"]["statistics"]["sender"]["recalibrated"]
    assert len(found["seeds"]) == 4
    assert abs(found["mean"] - 71) < 2


def test_every_choice_is_planned_once_with_every_seed() -> None:
    cells = planned()
    assert len({repr(cell.config) for cell in cells}) == len({cell.name for cell in cells}) == len(cells)
    assert len(cells) == len(SEEDS) * len(OPTIONS) == 30
    assert OPTIONS[0] == {}
    assert {cell.config.preset for cell in cells} == {"mini-domains"}


def test_options_are_collected(tmp_path: Path) -> None:
    """Runs of one round, whose counts are then replaced: 10, 12 and 8 right of 20 by each of three clients."""
    tiny = {"rounds": 1, "epochs": 1, "images_per_client": 16, "test_images": 20, "clients": 3, "dataset": "embedded"}
    right = {"{}": 10, '{"tau": 0.0}': 12, '{"l1": false}': 8}
    cells = planned([json.loads(choice) for choice in right], **tiny)
    first = cells[0]
    assert [state for _, state in run_cells([first], Place(tmp_path, tmp_path / "work"))] == ["done"]
    assert read_cell(first.path(tmp_path))["summary"]["score_means"].keys() == {"plain", "recalibrated"}
    template = json.loads(first.path(tmp_path).read_text())
    first.path(tmp_path).unlink()
    for cell, count in zip(cells, len(SEEDS) * [*right.values()], strict=True):
        clients = [
            client
            | {kind: {part: [count, 20] for part in ("test", "validation")} for kind in ("plain", "recalibrated")}
            for client in template["clients"]
        ]
        config = json.loads(json.dumps(vars(cell.config) | {"options": dict(cell.config.options)}))
        record = template | {"seed": cell.seed, "configuration": config, "clients": clients, "right": []}
        cell.path(tmp_path).write_text(json.dumps(record))
    write_options(tmp_path / "options", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    best, defaults, worst = found["choices"]
    assert [best["settings"], defaults["settings"], worst["settings"]] == [{"tau": 0.0}, {}, {"l1": False}]
    assert (best["mean"], worst["mean"]) == (pytest.approx(0.1), pytest.approx(-0.1))
    assert best["p"] == pytest.approx(worst["p"])
    assert fmean(defaults["validation"]) == 0.5
    assert "p" not in defaults
    rows = "\n".join(_options(found)).splitlines()
    assert rows[3] == "| defaults | 1, 2 and 3 | 50.0 | 50.0 | - | - |"


def test_the_former_network_has_three_convolutions_and_a_head() -> None:
    network = FormerCNN(torch.zeros(1, 1, 16, 16), 10)
    sizes = {name: tuple(tensor.shape) for name, tensor in network.named_parameters() if tensor.dim() > 1}
    assert sizes == {
        "conv1.0.weight": (16, 1, 3, 3),
        "conv2.0.weight": (32, 16, 3, 3),
        "conv3.0.weight": (64, 32, 3, 3),
        "head.weight": (10, 64),
    }
    assert network(torch.zeros(2, 1, 16, 16)).shape == (2, 10)
