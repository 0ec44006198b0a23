"""The studies of miniatures plan their runs, collect them, and the page is what their results give."""

import json
from pathlib import Path
from typing import Any

import pytest

from factorized_fl.bench.cells import Place, read_cell, run_cells
from factorized_fl.config import from_table
from factorized_fl.methods import METHODS
from factorized_fl.profiles import profile_settings
from studies.mini import collect
from studies.mini.cells import OPTIONS, SAME_RATE, Planned, planned
from studies.mini.collect import QUESTIONS, read_results, write_grid, write_options, write_tuning
from studies.mini.records import row_name
from studies.mini.show import BEGIN, END, PAGE, _options, _scores, tables


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
        rates = {run["settings"].get("lr", 0.001): run["validation"] for run in tuning["runs"] if run["row"] == method}
        best = max(rates.values(), default=0.0)
        assert not rates or best - rates[settings["lr"]] < 0.003, method


def test_every_question_is_answered_in_the_results() -> None:
    found = read_results("grid")["questions"]
    assert {name: [(a["row"], a["over"]) for a in answers] for name, answers in found.items()} == {
        name: [(row_name(one), row_name(other)) for one, other in pairs] for name, pairs in QUESTIONS.items()
    }


def test_every_method_has_rates_and_every_run_is_planned_once() -> None:
    rates, options = planned("rates"), planned("options")
    assert {one.method for one in rates} | SAME_RATE.keys() == set(METHODS)
    assert len(rates) == 4 * (len(METHODS) - len(SAME_RATE)) <= 120
    assert len(options) == 3 * len(OPTIONS) <= 60
    assert OPTIONS[0] == {}
    assert planned() == [*options, *rates]
    records = [one.record() for one in planned()]
    assert len({record["name"] for record in records}) == len(records)
    assert len({repr(one.cell.config) for one in options}) == len(options)
    assert {record["preset"] for record in records if record["method"] != "fedproto"} == {"mini-domains"}


def write_record(folder: Path, template: dict[str, Any], right: list[int], seed: int = 1, **changes: Any) -> None:
    """Write the record of a run with so many right answers of 20 by each of its three clients."""
    config = template["configuration"] | {"seed": seed} | {k: v for k, v in changes.items() if k != "options"}
    if "options" in changes:
        config["options"] = config["options"] | changes["options"] if changes["options"] else {}
    score = [{"accuracy": count / 20, "correct": count, "total": 20} for count in right]
    clients = [
        {"client": f"client {k}", "domain": "d", "round": 1, **one}
        | {"scores": {kind: dict.fromkeys(("test", "validation"), one) for kind in ("plain", "recalibrated")}}
        for k, one in enumerate(score, 1)
    ]
    means = dict.fromkeys(("test", "validation"), sum(right) / 20 / len(right))
    summary = {"clients": clients, "score_means": dict.fromkeys(("plain", "recalibrated"), means)}
    record = template | {"seed": seed, "configuration": config, "right": []}
    record["summary"] = template["summary"] | summary
    name = f"{config['method']}-{seed}-{len(list(folder.glob('*')))}.json"
    (folder / name).write_text(json.dumps(record))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the record of a run, as the study writes it."""
    folder = tmp_path_factory.mktemp("mini")
    tiny = {"rounds": 1, "epochs": 1, "images_per_client": 16, "test_images": 20, "clients": 3}
    cell = Planned("options", "factorized-fl", "demo", {"lr": 0.01, **tiny}).cell
    assert [state for _, state in run_cells([cell], Place(folder, folder / "work"))] == ["done"]
    assert read_cell(cell.path(folder))["summary"]["score_means"].keys() == {"plain", "recalibrated"}
    record: dict[str, Any] = read_cell(cell.path(folder))
    return record


def test_a_grid_is_collected(template: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "PRESET", "demo")
    runs = tmp_path / "runs"
    runs.mkdir()
    for seed in (1, 2):
        write_record(runs, template, [10, 10, 10], seed, method="stand-alone", options={})
        write_record(runs, template, [14, 14, 14], seed, method="factorized-peers", options={})
        write_record(runs, template, [12, 12, 12], seed, method="factorized-peers", control=True, options={})
    write_record(
        runs, template, [20, 20, 20], method="fedavg", recalibrate=False, options={}
    )  # not compared by plain statistics
    write_grid([runs], tmp_path / "grid.json")
    grid = json.loads((tmp_path / "grid.json").read_text())
    gains = grid["gains"]["factorized-peers"]
    assert gains["control"]["mean"] == pytest.approx(0.1)
    assert (gains["control"]["seeds"], gains["control"]["helped"]) == (2, 0)
    assert gains["stand-alone"]["mean"] == pytest.approx(0.2)
    assert grid["gains"]["stand-alone"] == {}
    assert [line.split(" | ")[0] for line in _scores(grid)][2:] == [
        "| Factorized-Peers",
        "| Factorized-Peers, each client alone",
        "| Stand-Alone",
    ]


def test_rates_and_options_are_collected(
    template: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates, options = tmp_path / "rates", tmp_path / "options"
    rates.mkdir()
    options.mkdir()
    write_record(rates, template, [10, 10, 10], lr=0.03)
    write_record(rates, template, [12, 10, 10], lr=0.003)
    write_record(rates, template, [9, 9, 9], method="fedavg", lr=0.001, options={})
    write_tuning([rates], tmp_path / "tuning.json")
    tuning = json.loads((tmp_path / "tuning.json").read_text())
    assert tuning["profile"]["factorized-fl"] == tuning["profile"]["mixed-layout"] == {"lr": 0.003}
    assert tuning["profile"]["knn-per"] == {"lr": 0.001}

    table = json.loads(json.dumps(template["configuration"]))
    monkeypatch.setattr(collect, "resolve", lambda *_: from_table(table))
    for seed in (1, 2, 3):
        write_record(options, template, [10, 10, 10], seed)
        write_record(options, template, [12, 12, 12], seed, options={"tau": 0.75})
        write_record(options, template, [8, 8, 8], seed, options={"l1": False})
    write_options([options], tmp_path / "options.json")
    found = json.loads((tmp_path / "options.json").read_text())
    assert [choice["settings"] for choice in found["choices"]] == [{"tau": 0.75}, {}, {"l1": False}]
    best, defaults, worst = found["choices"]
    assert (best["mean"], worst["mean"]) == (pytest.approx(0.1), pytest.approx(-0.1))
    assert best["p"] == pytest.approx(worst["p"])
    assert "p" not in defaults
    assert list(_options(found))[3] == "| defaults | 1, 2, 3 | 50.0 | - | - | 50.0 |"
