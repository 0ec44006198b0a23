import safetensors.torch
import torch

from factorized_fl.federation.ledger import parameters, payload_bytes
from factorized_fl.federation.rounds import run_round
from tests.tiny import tiny_federation


def test_bytes_are_those_of_the_real_serialisation() -> None:
    payload = {"a.weight": torch.randn(3, 4), "b": torch.zeros(5, dtype=torch.float16)}
    assert payload_bytes(payload) == len(safetensors.torch.save(payload))
    assert parameters(payload) == 17
    assert payload_bytes({}) == 0


def test_factorized_fl_sends_u_norm_and_one_v_and_receives_u_and_norm() -> None:
    federation = tiny_federation("factorized-fl")
    tensors = federation.state.client(0)
    shared = sum(
        tensors[name].numel() for name, role in federation.roles.items() if role.kind in ("u", "norm") and not role.head
    )
    v = federation.method.fingerprint(tensors, federation.roles)
    assert v is not None
    run_round(federation, 1)
    records, _ = run_round(federation, 2)
    assert {r["up_parameters"] for r in records} == {shared + v.numel()}
    assert {r["down_parameters"] for r in records} == {shared}


def test_beta_does_not_pay_twice_for_v() -> None:
    federation = tiny_federation("factorized-fl-beta")
    run_round(federation, 1)
    records, _ = run_round(federation, 2)
    assert all(r["up_parameters"] == r["down_parameters"] for r in records)


def test_stand_alone_costs_nothing() -> None:
    federation = tiny_federation("stand-alone")
    run_round(federation, 1)
    records, mixing = run_round(federation, 2)
    assert mixing is None
    assert all(r["up_bytes"] == r["down_bytes"] == 0 for r in records)
