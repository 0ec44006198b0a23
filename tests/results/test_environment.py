import pytest
import torch

from factorized_fl.results.environment import describe_environment, device_name


def test_a_tree_without_history_can_be_told_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFL_COMMIT", "0123456789ab")
    assert describe_environment(1, "cpu")["commit"] == "0123456789ab"
    monkeypatch.delenv("FFL_COMMIT")
    assert describe_environment(1, "cpu")["commit"] != "0123456789ab"


def test_the_device_named_is_the_one_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"GPU {device}")
    assert device_name("cuda:1") == "GPU cuda:1"
