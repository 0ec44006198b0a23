import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import formula_bytes, summarise_traffic
from factorized_fl.core.payload import data_bytes, decode, encode, measure, occupied
from factorized_fl.methods import METHODS
from factorized_fl.simulate.rounds import run_round
from tests.tiny import tiny_federation

TYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8]


def sizes(tensors: dict[str, torch.Tensor]) -> tuple[int, int]:
    return measure({n: (tuple(t.shape), t.dtype, int(occupied(t).sum())) for n, t in tensors.items()})


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=1, max_size=4),
    density=st.floats(0, 1),
    kind=st.sampled_from(TYPES),
    seed=st.integers(0, 1000),
)
def test_payload_round_trips_exactly_and_is_as_long_as_measured(shapes, density, kind, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for index, shape in enumerate(shapes):
        values = torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < density)
        tensors[f"layer{index}.weight"] = (values * 100).to(kind) if kind == torch.uint8 else values.to(kind)
    content = encode(tensors)
    back = decode(content)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert torch.equal(back[name], tensor)
    assert len(content) == sizes(tensors)[1]
    numbers = sum(data_bytes(tuple(t.shape), t.dtype, int(occupied(t).sum())) for t in tensors.values())
    assert len(content) == 8 + int.from_bytes(content[:8], "little") + numbers  # a header, and the numbers by tensor


def test_minus_zero_and_nan_survive() -> None:
    tensor = torch.zeros(4000)
    tensor[7], tensor[9] = -0.0, float("nan")
    back = decode(encode({"mu": tensor}))["mu"]
    assert torch.equal(back.view(torch.int32), tensor.view(torch.int32))


@pytest.mark.parametrize(("survivors", "most"), [(0.0, 0.01), (0.01, 0.03), (0.15, 0.25), (1.0, 1.01)])
def test_sparse_mu_costs_what_it_should(survivors: float, most: float) -> None:
    """15% survivors: a bit mask and the values, 1/32 + 0.15 of dense."""
    mu = torch.randn(256, 256, 3, 3).masked_fill(torch.rand(256, 256, 3, 3) >= survivors, 0.0)
    content = encode({"mu": mu})
    assert len(content) < most * mu.numel() * 4
    assert torch.equal(decode(content)["mu"], mu)
    assert len(content) == sizes({"mu": mu})[1]


def test_damaged_payload_is_refused() -> None:
    content = encode({"mu": torch.eye(100)})
    for bad in (b"", content[:50], b"x" * 200):
        with pytest.raises(UserError, match="damaged"):
            decode(bad)


@pytest.mark.parametrize("method", METHODS)
def test_bytes_of_a_real_round_are_those_of_the_encoded_payload(method: str) -> None:
    options = {"prune": "round", "sparsity": 0.01} if "factorized" in method else {}
    federation = tiny_federation(method, options=options)
    run_round(federation, 1)
    records, _ = run_round(federation, 2)
    for record in records:
        tensors = federation.clients.state.client(record["client"])
        payload = {name: tensors[name] for name in tensors if name in federation.shared}
        vector = federation.method.fingerprint(tensors, federation.roles)
        if payload and vector is not None and not federation.method.fingerprint_is_shared:
            payload["fingerprint"] = vector
        assert record["up_bytes"] == (len(encode(payload)) if payload else 0)


def test_pruning_each_round_makes_the_upload_sparse() -> None:
    kept = tiny_federation("factorized-fl-beta", options={"sparsity": 0.02})
    pruned = tiny_federation("factorized-fl-beta", options={"sparsity": 0.02, "prune": "round"})
    first, second = (run_round(federation, 1)[0] for federation in (kept, pruned))
    assert [r["accuracy"] for r in first] == [r["accuracy"] for r in second]  # pruned at the test anyway
    assert all(b["up_bytes"] < 0.8 * a["up_bytes"] for a, b in zip(first, second, strict=True))
    assert all(r["up_formula"] <= r["up_parameters"] for r in second)


def test_factorized_fl_sends_u_norm_and_one_v_and_receives_u_and_norm() -> None:
    federation = tiny_federation("factorized-fl")
    tensors = federation.clients.state.client(0)
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
    assert summarise_traffic(records) == dict.fromkeys(summarise_traffic(records), 0)


def test_fedfomo_pays_for_every_model_it_tries_but_its_own() -> None:
    federation = tiny_federation("fedfomo", options={"models": 3})
    run_round(federation, 1)
    records, _ = run_round(federation, 2)
    assert all(r["down_parameters"] == 2 * r["up_parameters"] for r in records)
    assert all(r["down_formula"] == 3 * r["up_formula"] for r in records)


def test_conventions_of_the_formula() -> None:
    assert formula_bytes([(1, 10, 4), (2, 10, 4)]) == {"formula_a_bytes": 4 * 24, "formula_b_bytes": 4 * 28}


def test_a_client_that_drops_out_pays_for_what_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same download costs the same whether its receiver answers or not, also when mu is sparse."""
    options = {"prune": "round", "sparsity": 0.02, "tau": -1.0}
    costs = []
    for answering in ([0, 1, 2, 3], [0, 1, 3]):
        federation = tiny_federation("factorized-fl-beta", options=options)
        run_round(federation, 1)
        monkeypatch.setattr("factorized_fl.simulate.rounds.choose", lambda *_, a=answering: ([0, 1, 2, 3], a))
        records, _ = run_round(federation, 2)
        monkeypatch.undo()
        costs.append(records[2]["down_bytes"])
        assert (records[2]["up_bytes"] > 0) == (2 in answering)
    assert costs[0] == costs[1] > 0
