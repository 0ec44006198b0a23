import pytest

from factorized_fl.report.tables import compare, result_table, verdict_lines
from factorized_fl.results.verdict import verdicts


def summary(*accuracies: float, total: int = 400) -> dict:
    clients = [
        {"client": k, "domain": "d", "accuracy": a, "correct": round(a * total), "total": total, "round": 1}
        for k, a in enumerate(accuracies)
    ]
    mean = sum(accuracies) / len(accuracies)
    return {"clients": clients, "accuracy_mean": mean, "accuracy_spread": 0.0, "up_bytes": 10, "down_bytes": 20}


def test_two_standard_errors_decide() -> None:
    """At 50% of 400 images the difference has a standard error of sqrt(2 * 0.25 / 400) = 3.54 points."""
    found = verdicts([summary(0.50 + 0.08, 0.50 + 0.06, 0.50 - 0.08)], [summary(0.5, 0.5, 0.5)])
    assert [verdict.word for verdict in found] == ["helped", "no difference", "harmed"]
    assert found[0].error == pytest.approx(0.0353, abs=5e-4)
    assert found[0].difference == pytest.approx(0.08)


def test_more_seeds_make_surer() -> None:
    once = verdicts([summary(0.56)], [summary(0.5)])
    thrice = verdicts([summary(0.56)] * 3, [summary(0.5)] * 3)
    assert (once[0].word, thrice[0].word) == ("no difference", "helped")
    assert thrice[0].error == pytest.approx(once[0].error / 3**0.5)


def test_a_perfect_score_on_two_images_proves_nothing() -> None:
    assert verdicts([summary(1.0, total=2)], [summary(0.5, total=2)])[0].word == "no difference"


def test_only_clients_of_both_runs_are_compared() -> None:
    assert len(verdicts([summary(0.5, 0.5)], [summary(0.5)])) == 1


def test_comparison_says_plainly_who_was_helped_and_harmed() -> None:
    rows = compare({"stand-alone": [summary(0.5, 0.5)], "fedavg": [summary(0.7, 0.3)]})
    assert rows[0].verdicts == ()
    assert (rows[1].better, rows[1].clients("helped"), rows[1].clients("harmed")) == (1, [1], [2])
    assert verdict_lines(rows) == ["FedAvg: helped client 1, harmed client 2; the rest within two standard errors."]


def test_without_stand_alone_there_is_no_verdict() -> None:
    rows = compare({"fedavg": [summary(0.7), summary(0.6)]})
    assert rows[0].verdicts == ()
    assert rows[0].seed_spread == pytest.approx(0.0707, abs=1e-4)
    assert verdict_lines(rows) == []


def test_a_run_in_which_nobody_was_tested_has_a_table_that_says_so() -> None:
    nothing = {"accuracy_mean": None, "accuracy_spread": None, "clients": []}
    table = result_table({"method": "fedavg", **nothing, "up_bytes": 1500, "down_bytes": 0})
    assert table.title == "FedAvg: nobody was tested, up 1.5 kB, down 0 B"
    assert table.row_count == 0
