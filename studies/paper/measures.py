"""From a finished run's directory to the compact record that is kept of it."""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from factorized_fl.core.ledger import formula_bytes
from factorized_fl.results.rundir import Record, RunDirectory
from studies.paper.cells import Cell
from studies.runner import as_record


def measure(cell: Cell, directory: RunDirectory, start_seconds: float) -> Record:
    """Return accuracies and bytes per round, times, the configuration, and summaries of mixing and factors."""
    config, clients = directory.config(), directory.clients()
    environment = json.loads((directory.path / "environment.json").read_text(encoding="utf-8"))
    domains = [client["domain"] for client in clients]
    record: Record = {
        "what": cell.study,
        **{name: getattr(cell, name) for name in ("setting", "method", "variant", "seed", "preset")},
        "commit": environment.pop("commit"),
        "environment": environment,
        **time_and_memory(directory.timing(), start_seconds),
        "configuration": as_record(config),
        "clients": {
            name: [client[key] for client in clients]
            for name, key in (("domain", "domain"), ("train", "train"), ("scored", "test"))
        },
        **counts(directory.metrics(), config.rounds, len(clients)),
    }
    if mixed := [directory.mixing(number) for number in directory.mixed_rounds()]:
        record["mixing"] = mixing_summary(mixed, domains)
    if traces := directory.traces():
        record["factors"] = factor_summary(traces, directory.analysis()["sizes"], domains)
    return record


def time_and_memory(timing: Sequence[Record], start: float) -> Record:
    """Return the time of the start, of all rounds and of a median one, and the most GPU memory, if there is a GPU."""
    seconds, peaks = [line["seconds"] for line in timing], [line["peak_gib"] for line in timing if "peak_gib" in line]
    times = {"start": round(start, 2), "rounds": round(sum(seconds), 2)}
    ordinary = {"ordinary_round": round(statistics.median(seconds), 4)}
    return {"seconds": times | ordinary} | ({"peak_gib": max(peaks)} if peaks else {})


def counts(metrics: Sequence[Record], rounds: int, clients: int) -> Record:
    """Return the bytes, as serialised and by the paper's formula, and the correct answers by round and client."""
    up, down = [0] * rounds, [0] * rounds
    correct: list[list[int | None]] = [[None] * clients for _ in range(rounds)]
    for line in metrics:
        up[line["round"] - 1] += line["up_bytes"]
        down[line["round"] - 1] += line["down_bytes"]
        correct[line["round"] - 1][line["client"]] = line["correct"]
    formula = formula_bytes((line["round"], line["up_formula"], line["down_formula"]) for line in metrics)
    sent = {"up": sum(up), "down": sum(down), "up_per_round": up, "down_per_round": down}
    return {"bytes": sent | {name.removesuffix("_bytes"): count for name, count in formula.items()}, "correct": correct}


def mixing_summary(rounds: Sequence[dict[str, torch.Tensor]], domains: Sequence[str]) -> Record:
    """Return the weights that clients gave to each other from the second round on; figure 8 (f) shows `matched`."""
    stack = torch.stack([tensors["matrix"].double() for tensors in rounds])
    own, same = torch.eye(len(domains), dtype=torch.bool), same_domain(domains)
    summary: Record = {
        "own": _rounded(stack[:, own].mean(1)),
        "own_domain": _rounded((stack * same).sum(2).mean(1)),
        "weight": _rounded(stack.mean(0)),
        "matched": ((stack > 0) & ~own).sum(0).tolist(),
    }
    if "state.norms" in rounds[0]:  # Clustered-FL's norms, and the clusters that they led to
        summary["norms"] = [[float(f"{norm:.6g}") for norm in tensors["state.norms"].tolist()] for tensors in rounds]
        summary["clusters"] = rounds[-1]["state.clusters"].tolist()
    if "revert" in rounds[0]:  # FedFOMO's share of clients that went back to the start of their last training
        summary["reverted"] = _rounded(torch.stack([tensors["revert"].double().mean() for tensors in rounds]))
    if "similarity" in rounds[0] and same.any():
        summary["found"] = _found([tensors["similarity"] for tensors in rounds], same)
    return summary


def factor_summary(
    traces: Mapping[int, dict[str, torch.Tensor]], sizes: Mapping[str, list[list[int]]], domains: Sequence[str]
) -> Record:
    """Return how similar the clients' u and v were after each round, and how many entries of mu were not zero.

    `sizes` are those of the layers of u, v and mu, client by client. `same` and `other` are mean cosines with clients
    of the own and of other domains, `found` is the share of the own domain among the nearest; matrices are kept of five
    rounds. `numbers` are the first client's.
    """
    same = same_domain(domains)
    pairs = {"same": same, "other": ~same & ~torch.eye(len(domains), dtype=torch.bool)}
    last = len(traces)
    kept_rounds = sorted({1, *(max(1, round(last * quarter / 4)) for quarter in (1, 2, 3, 4))})
    summary: Record = {}
    for kind in ("u", "v"):
        stack = torch.stack([tensors[f"cosine.{kind}"].double() for tensors in traces.values()])
        summary[kind] = {name: _rounded(stack[:, mask].mean(1)) for name, mask in pairs.items() if mask.any()}
        if all(mask.any() for mask in pairs.values()):
            summary[kind]["found"] = _found(stack, same)
            summary[kind]["matrices"] = {
                str(list(traces)[number - 1]): _rounded(stack[number - 1], digits=6) for number in kept_rounds
            }
    summary["numbers"] = {kind: sum(sizes[kind][0]) if kind in sizes else 0 for kind in ("u", "v", "mu")}
    if "mu" in sizes:
        each = torch.tensor(sizes["mu"], dtype=torch.float64)
        kept = torch.stack([(tensors["mu"] * each).round().sum(1).mean() for tensors in traces.values()])
        summary["mu_kept"] = kept.round().long().tolist()
    return summary


def same_domain(domains: Sequence[str]) -> torch.Tensor:
    """Return which pairs of different clients are of one domain."""
    equal = torch.tensor([[one == other for other in domains] for one in domains])
    return equal & ~torch.eye(len(domains), dtype=torch.bool)


def _found(similarities: Sequence[torch.Tensor] | torch.Tensor, same: torch.Tensor) -> list[Any]:
    """Return per round the share of the own domain among as many most similar clients as the domain has others."""
    members = same.sum(1).tolist()
    rounds = []
    for similarity in similarities:
        ranked = similarity.clone().fill_diagonal_(-torch.inf).argsort(dim=1, descending=True, stable=True)
        shares = [same[k, row[: members[k]]].double().mean() for k, row in enumerate(ranked) if members[k]]
        rounds.append(torch.stack(shares).mean())
    return _rounded(torch.stack(rounds))


def _rounded(values: torch.Tensor, digits: int = 4) -> list[Any]:
    return [round(value.item(), digits) if value.dim() == 0 else _rounded(value, digits) for value in values]
