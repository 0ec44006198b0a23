import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.report.tables import comparison_cells, result_table, verdict_lines
from factorized_fl.results.comparison import compare_methods, comparison_json
from factorized_fl.results.reading import RunFiles, read_run
from factorized_fl.simulate.run import Stopped, run_federation
from tests.report.synthetic import write_run
from tests.tiny import tiny_config, tiny_scenario


def a_run(path: Path, method: str, correct: list[int], **settings) -> RunFiles:
    return read_run(write_run(path, method, clients=len(correct), correct=correct, **settings), strict=True)


def test_a_comparison_says_plainly_which_clients_were_helped_and_harmed(tmp_path: Path) -> None:
    seeds = (1, 2, 3)
    alone = [a_run(tmp_path / f"alone{seed}", "stand-alone", [50, 50], seed=seed) for seed in seeds]
    fedavg = [a_run(tmp_path / f"fedavg{seed}", "fedavg", [80, 20], seed=seed) for seed in seeds]
    rows = compare_methods({"stand-alone": alone, "fedavg": fedavg}, {"fedavg": alone})
    assert [row.method for row in rows] == ["stand-alone", "fedavg"]
    assert (rows[0].effect, rows[0].alone) == (None, None)
    effect, beside = rows[1].effect, rows[1].alone
    assert effect is not None
    assert beside is not None
    assert (effect.names("helped"), effect.names("harmed"), effect.reference) == ([1], [2], "control")
    assert (beside.clients, beside.reference) == (effect.clients, "stand-alone")
    (line,) = verdict_lines(rows[1:])
    assert line.startswith("FedAvg: +0.0 points (95% interval -")
    assert line.endswith("over its control, 3 seeds: of 2 clients it helped 1 (1) and harmed 1 (2); 0 undecided.")


def test_one_seed_names_no_client(tmp_path: Path) -> None:
    alone = a_run(tmp_path / "alone", "stand-alone", [10, 90])
    rows = compare_methods({"fedavg": [a_run(tmp_path / "fedavg", "fedavg", [90, 10])]}, {"fedavg": [alone]})
    (line,) = verdict_lines(rows)
    assert line.endswith("on average over its control. One seed cannot decide: other seeds may give another sign.")
    assert comparison_cells(rows[0])[3:5] == ["-", "-"]


def test_without_a_reference_there_is_no_verdict(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / str(seed), "fedavg", [correct], seed=seed) for seed, correct in ((1, 70), (2, 60))]
    rows = compare_methods({"fedavg": runs})
    assert (rows[0].effect, rows[0].alone) == (None, None)
    assert rows[0].accuracy == pytest.approx(0.65)
    assert rows[0].seed_spread == pytest.approx(0.0707, abs=1e-4)
    assert rows[0].up_bytes == 3000
    assert verdict_lines(rows) == []


def test_the_file_counts_clients_from_1(tmp_path: Path) -> None:
    alone = a_run(tmp_path / "alone", "stand-alone", [50, 50])
    rows = compare_methods({"fedavg": [a_run(tmp_path / "fedavg", "fedavg", [80, 20])]}, {"fedavg": [alone]})
    (row,) = json.loads(comparison_json(rows))
    assert [verdict["client"] for verdict in row["effect"]["clients"]] == [1, 2]
    assert row["effect"]["clients"][0]["difference"] == pytest.approx(0.3)
    assert row["effect"]["seeds"] == 1
    assert row["alone"] is None


def test_a_method_without_a_result_is_not_compared(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", "fedavg", rounds=1)
    (path / "metrics.jsonl").write_text("")
    (path / "summary.json").write_text('{"method": "fedavg", "clients": []}')
    with pytest.raises(UserError, match="No client was tested with fedavg: choose a smaller dropout"):
        compare_methods({"fedavg": [read_run(path)]})


def test_a_run_in_which_no_client_was_tested_has_a_table_that_says_so() -> None:
    nothing = {"accuracy_mean": None, "accuracy_spread": None, "clients": []}
    table = result_table({"method": "fedavg", **nothing, "up_bytes": 1500, "down_bytes": 0})
    assert table.title == "FedAvg: no client was tested, up 1.5 kB, down 0 B"
    assert table.row_count == 0


def test_files_say_client_1_and_those_that_count_from_0_are_read(tmp_path: Path) -> None:
    config = tiny_config("fedavg", rounds=2)
    run = run_federation(config, tmp_path / "run", scenario=tiny_scenario(config))
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["client"] for line in lines] == [f"client {k}" for k in (1, 2, 3, 4)] * 2
    summary = json.loads((run.path / "summary.json").read_text())
    assert [client["client"] for client in summary["clients"]] == [f"client {k}" for k in (1, 2, 3, 4)]
    assert [record["client"] for record in run.metrics()] == [0, 1, 2, 3] * 2
    now = read_run(run.path, strict=True)
    old = [line | {"client": k % 4} for k, line in enumerate(lines)]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    clients = [client | {"client": k} for k, client in enumerate(summary["clients"])]
    (run.path / "summary.json").write_text(json.dumps(summary | {"clients": clients}))
    assert read_run(run.path, strict=True).final == now.final


class StopAtOnce:
    def started(self, federation: object, done: int) -> None: ...

    def client_done(self, round_number: int, client: int) -> None: ...

    def round_done(self, round_number: int, records: object) -> None:
        raise Stopped


def test_a_run_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    """Its lines stay as they are, because its checkpoint knows their size."""
    config = tiny_config("fedavg", rounds=2)
    run = tmp_path / "run"
    with pytest.raises(Stopped):
        run_federation(config, run, scenario=tiny_scenario(config), observers=[StopAtOnce()])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    old = "".join(json.dumps(line | {"client": k}) + "\n" for k, line in enumerate(lines))
    (run / "metrics.jsonl").write_text(old)
    tensors = safetensors.torch.load_file(run / "checkpoint.safetensors")
    tensors["metrics_size"] = torch.tensor(len(old))
    safetensors.torch.save_file(tensors, run / "checkpoint.safetensors", metadata={"round": "1"})
    done = run_federation(config, run, scenario=tiny_scenario(config), resume=True)
    assert (run / "metrics.jsonl").read_text().startswith(old)
    assert [record["client"] for record in done.metrics()] == [0, 1, 2, 3] * 2
