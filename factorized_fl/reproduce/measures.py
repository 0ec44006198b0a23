"""From a finished run's directory to the compact record that is kept of it."""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from factorized_fl.core.ledger import formula_bytes
from factorized_fl.reproduce.cells import Cell, as_record
from factorized_fl.results.rundir import Record, RunDirectory


def measure(cell: Cell, directory: RunDirectory, start_seconds: float) -> Record:
    """All that is kept of a run: accuracy per round and client, bytes, time, who listened to whom."""
    config = directory.config()
    metrics, clients, timing = directory.metrics(), directory.clients(), directory.timing()
    environment = json.loads((directory.path / "environment.json").read_text(encoding="utf-8"))
    domains = [client["domain"] for client in clients]
    record: Record = {
        "what": cell.what,
        "setting": cell.setting,
        "method": cell.method,
        "variant": cell.variant,
        "seed": cell.seed,
        "preset": cell.preset,
        "commit": environment.pop("commit"),
        "environment": environment,
        "seconds": {"start": round(start_seconds, 2), **round_seconds(timing)},
        **peak_memory(timing),
        "configuration": as_record(config),
        "clients": {
            "domain": domains,
            "train": [client["train"] for client in clients],
            "scored": [client["test"] for client in clients],
        },
        "bytes": traffic(metrics, config.rounds),
        "correct": correct_counts(metrics, config.rounds, len(clients)),
    }
    if mixed := [directory.mixing(number) for number in directory.mixed_rounds()]:
        record["mixing"] = mixing_summary(mixed, domains)
    if traces := directory.traces():
        record["factors"] = factor_summary(traces, directory.analysis()["sizes"], domains)
    return record


def round_seconds(timing: Sequence[Record]) -> Record:
    """The time of all rounds, and of an ordinary one: the first compiles and captures, others may have been resumed."""
    seconds = [line["seconds"] for line in timing]
    return {"rounds": round(sum(seconds), 2), "ordinary_round": round(statistics.median(seconds), 4)}


def peak_memory(timing: Sequence[Record]) -> Record:
    """The most memory that the run took on its GPU, over all of its rounds; nothing on a CPU."""
    peaks = [line["peak_gib"] for line in timing if "peak_gib" in line]
    return {"peak_gib": max(peaks)} if peaks else {}


def correct_counts(metrics: Sequence[Record], rounds: int, clients: int) -> list[list[int | None]]:
    """Images classified right, by round and client."""
    counts: list[list[int | None]] = [[None] * clients for _ in range(rounds)]
    for record in metrics:
        counts[record["round"] - 1][record["client"]] = record["correct"]
    return counts


def traffic(metrics: Sequence[Record], rounds: int) -> Record:
    """Bytes as serialised, in total and per round, and what the paper's formula counts by both conventions."""
    up, down = [0] * rounds, [0] * rounds
    for record in metrics:
        up[record["round"] - 1] += record["up_bytes"]
        down[record["round"] - 1] += record["down_bytes"]
    formula = formula_bytes((r["round"], r["up_formula"], r["down_formula"]) for r in metrics)
    return {
        "up": sum(up),
        "down": sum(down),
        "formula_a": formula["formula_a_bytes"],
        "formula_b": formula["formula_b_bytes"],
        "up_per_round": up,
        "down_per_round": down,
    }


def mixing_summary(rounds: Sequence[dict[str, torch.Tensor]], domains: Sequence[str]) -> Record:
    """How clients weighed each other from the second round on; figure 8 (f) is `matched`."""
    stack = torch.stack([tensors["matrix"].double() for tensors in rounds])
    own = torch.eye(len(domains), dtype=torch.bool)
    same = same_domain(domains)
    summary: Record = {
        "own": _rounded(stack[:, own].mean(1)),
        "own_domain": _rounded((stack * same).sum(2).mean(1)),
        "weight": _rounded(stack.mean(0)),
        "matched": ((stack > 0) & ~own).sum(0).tolist(),
    }
    if "state.norms" in rounds[0]:  # Clustered-FL's, and what it came to
        summary["norms"] = [[float(f"{norm:.6g}") for norm in tensors["state.norms"].tolist()] for tensors in rounds]
        summary["clusters"] = rounds[-1]["state.clusters"].tolist()
    if "revert" in rounds[0]:  # FedFOMO's: the share of clients that went back to where their last training began
        summary["reverted"] = _rounded(torch.stack([tensors["revert"].double().mean() for tensors in rounds]))
    if "similarity" in rounds[0] and same.any():
        summary["found"] = _rounded(torch.stack([found(tensors["similarity"], same).mean() for tensors in rounds]))
    return summary


def factor_summary(
    traces: Mapping[int, dict[str, torch.Tensor]], sizes: Mapping[str, list[list[int]]], domains: Sequence[str]
) -> Record:
    """How alike the clients' u and v were after each round, and how many entries of mu were not zero.

    `sizes` are those of u's, v's and mu's layers, client by client. `same` and `other` are mean cosines with clients of
    one's own and of other domains, `found` is the share of one's domain among as many most similar clients as it has
    other members; whole matrices are kept of five rounds. `numbers` are the first client's. Everybody is expected to
    take part in every round, as in all of the paper's.
    """
    same = same_domain(domains)
    apart = ~same & ~torch.eye(len(domains), dtype=torch.bool)
    summary: Record = {}
    for kind in ("u", "v"):
        stack = torch.stack([tensors[f"cosine.{kind}"].double() for tensors in traces.values()])
        pairs = {"same": same, "other": apart}
        summary[kind] = {name: _rounded(stack[:, mask].mean(1)) for name, mask in pairs.items() if mask.any()}
        if same.any() and apart.any():
            summary[kind]["found"] = _rounded(torch.stack([found(matrix, same).mean() for matrix in stack]))
            summary[kind]["matrices"] = {
                str(number): _rounded(traces[number][f"cosine.{kind}"], digits=6) for number in _five(list(traces))
            }
    summary["numbers"] = {kind: sum(sizes[kind][0]) if kind in sizes else 0 for kind in ("u", "v", "mu")}
    if "mu" in sizes:
        each = torch.tensor(sizes["mu"], dtype=torch.float64)
        kept = torch.stack([(tensors["mu"] * each).round().sum(1).mean() for tensors in traces.values()])
        summary["mu_kept"] = kept.round().long().tolist()
    return summary


def same_domain(domains: Sequence[str]) -> torch.Tensor:
    """Which pairs of different clients are of one domain."""
    equal = torch.tensor([[a == b for b in domains] for a in domains])
    return equal & ~torch.eye(len(domains), dtype=torch.bool)


def found(similarity: torch.Tensor, same: torch.Tensor) -> torch.Tensor:
    """For each client the share of its own domain among as many most similar clients as the domain has others.

    Somebody without knowledge would find (members - 1) / (clients - 1).
    """
    ranked = similarity.clone().fill_diagonal_(-torch.inf).argsort(dim=1, descending=True, stable=True)
    members = same.sum(1).tolist()
    shares = [
        same[client, row[: members[client]]].double().mean() for client, row in enumerate(ranked) if members[client]
    ]
    return torch.stack(shares)


def _five(rounds: Sequence[int]) -> list[int]:
    """The first, the last and three between them."""
    last = len(rounds)
    return [rounds[i - 1] for i in sorted({1, *(max(1, round(last * quarter / 4)) for quarter in (1, 2, 3, 4))})]


def _rounded(values: torch.Tensor, digits: int = 4) -> list[Any]:
    """As lists of numbers with so many digits."""
    return [round(value.item(), digits) if value.dim() == 0 else _rounded(value, digits) for value in values]
