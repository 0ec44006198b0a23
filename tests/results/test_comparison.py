from pathlib import Path

import pytest

from factorized_fl.core.errors import UserError
from factorized_fl.report.tables import result_table, verdict_lines
from factorized_fl.results.comparison import client_verdicts, compare_methods
from factorized_fl.results.reading import RunFiles, read_run
from factorized_fl.results.schema import FinalResult
from tests.report.synthetic import write_run


def results(*accuracies: float, total: int = 400) -> list[FinalResult]:
    return [
        {
            "client": k,
            "domain": "d",
            "round": 1,
            "accuracy": accuracy,
            "correct": round(accuracy * total),
            "total": total,
            "diverged": False,
        }
        for k, accuracy in enumerate(accuracies)
    ]


def test_two_standard_errors_decide() -> None:
    """At 50% of 400 images the difference has a standard error of sqrt(2 * 0.25 / 400) = 3.54 points."""
    found = client_verdicts([results(0.50 + 0.08, 0.50 + 0.06, 0.50 - 0.08)], [results(0.5, 0.5, 0.5)])
    assert [verdict.word for verdict in found] == ["helped", "no difference", "harmed"]
    assert found[0].error == pytest.approx(0.0353, abs=5e-4)
    assert found[0].difference == pytest.approx(0.08)


def test_more_seeds_make_surer() -> None:
    once = client_verdicts([results(0.56)], [results(0.5)])
    thrice = client_verdicts([results(0.56)] * 3, [results(0.5)] * 3)
    assert (once[0].word, thrice[0].word) == ("no difference", "helped")
    assert thrice[0].error == pytest.approx(once[0].error / 3**0.5)


def test_a_perfect_score_on_two_images_proves_nothing() -> None:
    assert client_verdicts([results(1.0, total=2)], [results(0.5, total=2)])[0].word == "no difference"


def test_only_clients_of_both_runs_are_compared() -> None:
    assert len(client_verdicts([results(0.5, 0.5)], [results(0.5)])) == 1


def a_run(path: Path, method: str, correct: list[int], **settings) -> RunFiles:
    return read_run(write_run(path, method, clients=len(correct), correct=correct, **settings), strict=True)


def test_comparison_says_plainly_which_clients_were_helped_and_harmed(tmp_path: Path) -> None:
    alone = a_run(tmp_path / "alone", "stand-alone", [50, 50])
    rows = compare_methods({"stand-alone": [alone], "fedavg": [a_run(tmp_path / "fedavg", "fedavg", [70, 30])]})
    assert [row.method for row in rows] == ["stand-alone", "fedavg"]
    assert rows[0].verdicts == ()
    assert (rows[1].better, rows[1].clients("helped"), rows[1].clients("harmed")) == (1, [1], [2])
    assert verdict_lines(rows) == ["FedAvg: helped client 1, harmed client 2; the rest within two standard errors."]


def test_without_stand_alone_there_is_no_verdict(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / str(seed), "fedavg", [correct], seed=seed) for seed, correct in ((1, 70), (2, 60))]
    rows = compare_methods({"fedavg": runs})
    assert rows[0].verdicts == ()
    assert rows[0].accuracy == pytest.approx(0.65)
    assert rows[0].seed_spread == pytest.approx(0.0707, abs=1e-4)
    assert rows[0].up_bytes == 3000
    assert verdict_lines(rows) == []


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
