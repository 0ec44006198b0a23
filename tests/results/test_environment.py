import pytest

from factorized_fl.results.environment import describe_environment


def test_a_tree_without_history_can_be_told_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFL_COMMIT", "0123456789ab")
    assert describe_environment(1, "cpu")["commit"] == "0123456789ab"
    monkeypatch.delenv("FFL_COMMIT")
    assert describe_environment(1, "cpu")["commit"] != "0123456789ab"
