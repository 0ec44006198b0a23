"""Attacks on updates without a name: the sender and its domain, given earlier updates with their senders' names."""

import torch

from factorized_fl.audit.estimates import Measure, agreement
from factorized_fl.audit.observe import Seen
from factorized_fl.core.views import Tensors
from factorized_fl.data.scenarios import Scenario


def guess_senders(seen: Seen) -> Measure | None:
    """Return how often the sender of an update without a name is the client with the most similar earlier update.

    None if no two rounds have updates of several clients.
    """
    right: list[bool] = []
    chances = []
    for earlier, later in zip(seen.uploads, seen.uploads[1:], strict=False):
        known, unknown = _centred(earlier), _centred(later)
        if len(known) < 2:
            continue
        both = sorted(known.keys() & unknown.keys())
        for k in both:
            best = max(known, key=lambda other: float(known[other] @ unknown[k]))
            right.append(best == k)
            chances.append(1 / len(known))
    return agreement(right, sum(chances) / len(chances)) if right else None


def guess_domains(seen: Seen, scenario: Scenario) -> Measure | None:
    """Return how often the most similar update of another client in the last round is of the same domain."""
    domains = [client.domain for client in scenario.clients]
    found = _centred(seen.uploads[-1])
    right, chances = [], []
    for k in found:
        others = [other for other in found if other != k]
        alike = sum(domains[other] == domains[k] for other in others)
        if alike in (0, len(others)):
            continue  # nothing to guess
        best = max(others, key=lambda other: float(found[other] @ found[k]))
        right.append(domains[best] == domains[k])
        chances.append(alike / len(others))
    return agreement(right, sum(chances) / len(chances)) if right else None


def _centred(uploads: dict[int, Tensors]) -> dict[int, torch.Tensor]:
    """Return each update as a direction: the shared parameters without the mean over clients, of length one."""
    flat = {
        k: torch.cat([t.double().flatten() for t in tensors.values() if t.is_floating_point()])
        for k, tensors in uploads.items()
        if tensors
    }
    if not flat:
        return {}
    mean = torch.stack(list(flat.values())).mean(0)
    return {k: torch.nn.functional.normalize(vector - mean, dim=0) for k, vector in flat.items()}
