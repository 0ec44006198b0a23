import pytest
import torch

from factorized_fl.core.ledger import EXTRA, Load, Payloads, count_traffic, formula_bytes, measured, total_traffic
from factorized_fl.core.payload import encode
from factorized_fl.core.roles import Role
from factorized_fl.core.server import Sampling
from factorized_fl.core.views import Cost
from factorized_fl.methods import METHODS
from factorized_fl.simulate.rounds import run_round
from tests.tiny import tiny_federation

ROLES = {"mu": Role("mu", False), "u": Role("u", False), "t": Role("body", False), "fingerprint": Role("stat", False)}


def sparse_rows() -> dict[str, torch.Tensor]:
    """Rows of three clients with different numbers of zeros; `t` is a single number of each client."""
    mu = torch.ones(3, 50, 40)
    mu[0, 5:], mu[1, 20:] = 0.0, 0.0
    return {"mu": mu, "u": torch.randn(3, 9), "t": torch.tensor([1.0, 0.0, 2.0]), EXTRA + "c": torch.zeros(3, 7)}


# -- payloads


def test_a_load_is_the_length_of_each_clients_encoded_tensors() -> None:
    rows = sparse_rows()
    sent = Payloads([4, 2, 7], ROLES)
    assert [name for name, _ in sent.noting(rows.items())] == list(rows)
    loads = sent.loads()
    assert list(loads) == [4, 2, 7]
    for row, load in enumerate(loads.values()):
        assert load.bytes == len(encode({name: tensor[row] for name, tensor in rows.items()}))
    assert len({load.bytes for load in loads.values()}) == 3
    found = loads[7]
    assert found.roles == {"mu": 4 * 2000, "u": 36, "body": 4, "extra": 28}
    assert found.parameters == 2000 + 9 + 1 + 7


@pytest.mark.parametrize("name", ["mu", "u", "t"])
def test_a_row_that_is_repeated_without_a_copy_is_counted_like_its_copies(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sparse_rows()[name][:1]
    expanded = one.expand(5, *one.shape[1:])
    looked: list[int] = []

    def occupied(tensor: torch.Tensor) -> torch.Tensor:
        looked.append(tensor.numel())
        return usual(tensor)

    from factorized_fl.core import ledger

    usual = ledger.occupied
    copied, repeated = Payloads(range(5), ROLES), Payloads(range(5), ROLES)
    copied.add(name, expanded.clone())
    monkeypatch.setattr(ledger, "occupied", occupied)
    repeated.add(name, expanded)
    assert looked == [one.numel()]  # one row is looked at, not five
    assert repeated.entries == copied.entries
    assert repeated.loads() == copied.loads()
    assert repeated.loads()[0].bytes == len(encode({name: one[0]}))


def test_copies_multiply_a_load() -> None:
    sent = Payloads([0, 2], ROLES)
    sent.add("u", torch.ones(2, 9))
    once = sent.loads()[0]
    assert sent.loads(torch.tensor([3, 5, 0])) == {
        0: Load(27, 3 * once.bytes, {"u": 108}),
        2: Load(0, 0, {"u": 0}),
    }


def test_without_tensors_the_load_is_nothing() -> None:
    assert Payloads([1, 3], ROLES).loads() == {1: Load(), 3: Load()}


def test_a_fingerprint_and_extra_payloads_are_kinds_of_their_own() -> None:
    """A fingerprint may be a buffer of the model, and an extra payload may have the name of one of its tensors."""
    tensors, load = measured([("fingerprint", torch.ones(1, 6)), (EXTRA + "mu", torch.ones(1, 2))], ROLES)
    assert load.roles == {"fingerprint": 24, "extra": 8}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {"fingerprint": (6,), "extra/mu": (2,)}


def test_a_client_without_an_update_has_no_upload_in_the_ledger() -> None:
    load, cost = Load(3, 40, {"u": 12}), Cost(up=5, down=7)
    sent, failed = count_traffic(load, load, cost), count_traffic(load, None, cost)
    assert (sent.up_parameters, sent.up_bytes, sent.up_formula, sent.up_roles) == (3, 40, 5, {"u": 12})
    assert (failed.up_parameters, failed.up_bytes, failed.up_formula, failed.up_roles) == (0, 0, 0, {})
    for each in (sent, failed):
        assert (each.down_parameters, each.down_bytes, each.down_formula) == (3, 40, 7)


# -- rounds


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
        payload |= {EXTRA + name: tensor for name, tensor in federation.clients.outbox[record["client"]].items()}
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
    assert total_traffic(records) == dict.fromkeys(total_traffic(records), 0)


def test_fedfomo_pays_for_each_model_it_tries_except_its_own() -> None:
    federation = tiny_federation("fedfomo", options={"models": 3})
    run_round(federation, 1)
    records, _ = run_round(federation, 2)
    assert all(r["down_parameters"] == 2 * r["up_parameters"] for r in records)
    assert all(r["down_formula"] == 3 * r["up_formula"] for r in records)


def test_both_conventions_of_the_formula() -> None:
    assert formula_bytes([(1, 10, 4), (2, 10, 4)]) == {"formula_a_bytes": 4 * 24, "formula_b_bytes": 4 * 28}


def test_a_client_that_drops_out_pays_for_its_download(monkeypatch: pytest.MonkeyPatch) -> None:
    """A download costs the same whether its client sends an update or not, also when mu is sparse."""
    options = {"prune": "round", "sparsity": 0.02, "tau": -1.0}
    costs = []
    for answering in ([0, 1, 2, 3], [0, 1, 3]):
        federation = tiny_federation("factorized-fl-beta", options=options)
        run_round(federation, 1)
        monkeypatch.setattr(Sampling, "draw", lambda *_, a=answering: ([0, 1, 2, 3], a))
        records, _ = run_round(federation, 2)
        monkeypatch.undo()
        costs.append(records[2]["down_bytes"])
        assert (records[2]["up_bytes"] > 0) == (2 in answering)
    assert costs[0] == costs[1] > 0
