import json
from pathlib import Path

import pytest

from factorized_fl.core.errors import UserError
from factorized_fl.report.tables import comparison_cells, result_table, verdict_lines
from factorized_fl.results.comparison import compare_methods, comparison_json
from factorized_fl.results.reading import RunFiles, read_run
from tests.report.synthetic import write_run


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
