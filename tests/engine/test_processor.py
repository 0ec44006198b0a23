"""bf16 on a CPU: only if asked for, with parameters in float32, and for large batches alone."""

import pytest
import torch

from factorized_fl.engine import processor
from factorized_fl.simulate.rounds import run_round
from tests.tiny import tiny_federation


def test_bf16_changes_results_by_rounding_and_keeps_parameters_in_float32() -> None:
    """The learning rate is small, because steps of 0.05 soon make far more of a difference of rounding."""
    exact, half = (tiny_federation("factorized-fl", cpu_precision=each, lr=1e-6) for each in ("fp32", "bf16"))
    wanted, found = (run_round(each, 1)[0] for each in (exact, half))
    assert half.engine.describe()["convolutions"] == "bf16"
    assert exact.engine.describe()["convolutions"] == "fp32"
    for one, other in zip(found, wanted, strict=True):
        assert one["train_loss"] != other["train_loss"]
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=0.02)
    for name, tensor in half.clients.state.common.items():
        assert tensor.dtype == exact.clients.state.common[name].dtype


@pytest.mark.parametrize(("supported", "work", "half"), [(True, 1e9, True), (True, 1e7, False), (False, 1e9, False)])
def test_auto_uses_bf16_where_the_processor_has_it_and_the_batch_is_large(
    monkeypatch: pytest.MonkeyPatch, supported: bool, work: float, half: bool
) -> None:
    for name in ("avx512_bf16", "amx_tile"):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda: supported, raising=False)
    assert processor.computes_in_bf16("auto", work) is half
    assert processor.computes_in_bf16("bf16", 0.0)
    assert not processor.computes_in_bf16("fp32", 1e12)
