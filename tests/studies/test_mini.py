"""The page of the miniatures is what its results give."""

import json
from pathlib import Path

import pytest

from factorized_fl.profiles import profile_settings
from studies.mini.collect import QUESTIONS, read_results, row_name, write_grid, write_tuning
from studies.mini.show import BEGIN, END, PAGE, tables
from tests.report.synthetic import write_run


def test_the_page_is_what_the_results_give() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == tables().strip()
    for network, found in read_results("fedfomo-digits").items():
        for choice, kinds in found["statistics"].items():
            numbers = (f"{kinds[kind]['mean']:.1f}" for kind in ("recalibrated", "plain"))
            assert f"| {network} | {choice} | {' | '.join(numbers)} |" in text


def test_fedfomo_is_where_foreign_code_is() -> None:
    """Four seeds on digits-iid, with the network and the recalibration of that measurement: 71 points."""
    found = read_results("fedfomo-digits")["cnn of commit 3a531ae"]["statistics"]["sender"]["recalibrated"]
    assert len(found["seeds"]) == 4
    assert abs(found["mean"] - 71) < 2


def test_the_profile_has_the_rates_that_the_tuning_states() -> None:
    tuning = read_results("tuning")
    for method, settings in tuning["profile"].items():
        of_profile = profile_settings("tuned", method)
        assert all(of_profile[name] == value for name, value in settings.items())
        rates = {run["settings"]["lr"]: run["validation"] for run in tuning["runs"] if run["row"] == method}
        best = max(rates.values())
        assert best - rates[settings["lr"]] < 0.003, method


def test_every_question_is_answered_in_the_results() -> None:
    found = read_results("grid")["questions"]
    assert {name: [(a["row"], a["over"]) for a in answers] for name, answers in found.items()} == {
        name: [(row_name(one), row_name(other)) for one, other in pairs] for name, pairs in QUESTIONS.items()
    }


def test_runs_are_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {
        kind: {part: {"accuracy": 0.5, "correct": 5, "total": 10} for part in ("test", "validation")}
        for kind in ("plain", "recalibrated")
    }
    means = {kind: dict.fromkeys(parts, 0.5) for kind, parts in scores.items()}
    for method, seed in (("stand-alone", 1), ("fedavg", 1), ("fedavg", 2)):
        folder = tmp_path / "runs" / f"{method}-seed{seed}"
        write_run(folder, method, seed=seed)
        summary = json.loads((folder / "summary.json").read_text())
        summary["clients"] = [client | {"scores": scores} for client in summary["clients"]]
        (folder / "summary.json").write_text(json.dumps(summary | {"score_means": means}))
    write_grid(tmp_path / "runs", tmp_path / "grid.json")
    grid = json.loads((tmp_path / "grid.json").read_text())
    (answer,) = grid["questions"]["Does aggregation help?"]
    assert (answer["row"], answer["over"], answer["seeds"], answer["plain"]) == ("fedavg", "stand-alone", [1], 0.0)
    assert len(grid["runs"]) == 3
    write_tuning([tmp_path / "runs"], tmp_path / "tuning.json")
    assert {run["validation"] for run in json.loads((tmp_path / "tuning.json").read_text())["runs"]} == {0.5}
