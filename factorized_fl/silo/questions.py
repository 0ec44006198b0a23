"""Questions of the coordinator to single sites, outside the exchange of a round: losses and test results."""

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from factorized_fl.core.ledger import Traffic
from factorized_fl.core.payload import encode
from factorized_fl.core.views import Tensors
from factorized_fl.results.rundir import Record
from factorized_fl.silo.checks import read_result
from factorized_fl.silo.clinical import CLINICAL, read_shared
from factorized_fl.silo.messages import BadMessage, Message
from factorized_fl.simulate.rounds import make_record

if TYPE_CHECKING:
    from factorized_fl.silo.coordinator import Coordinator

_DEADLINE = 60.0  # seconds for a site to try one model on its held-out images


def ask_losses(coordinator: "Coordinator", k: int, candidates: Tensors) -> list[float]:
    """Returns site k's loss on its holdout with each of M candidates, NaN if it diverged; all NaN if one is missing."""
    site, losses = coordinator.sites[k], []
    for tensors in zip(*candidates.values(), strict=True):
        payload = encode(dict(zip(candidates, tensors, strict=True)))
        name = f"loss-{coordinator.round}-{blake2b(payload, digest_size=8).hexdigest()}"
        fields = {"request": name, "round": coordinator.round}
        request = Message("loss", coordinator.agreement.id, fields, payload)
        seconds = min(_DEADLINE, coordinator.agreement.deadline)
        answer = coordinator.collect({site: request}, 0, seconds, from_progress=True).get(site)
        try:
            if answer is None or "loss" not in answer.fields:
                break
            loss = answer.number("loss")
        except BadMessage as error:
            coordinator.strike(k, str(error))
            break
        losses.append(math.nan if loss is None else loss)
    else:
        return losses
    return [math.nan] * len(next(iter(candidates.values())))


def ask_tests(coordinator: "Coordinator", ks: Sequence[int]) -> list[Record]:
    """Returns the test results of these sites after the last round, as lines of the metrics."""
    fields = {"request": f"test-{coordinator.round}", "round": coordinator.round}
    request = Message("test", coordinator.agreement.id, fields)
    sites = [coordinator.sites[k] for k in ks]
    answers = coordinator.collect(dict.fromkeys(sites, request), 0, coordinator.agreement.deadline)
    records = []
    for site, answer in answers.items():
        k = coordinator.sites.index(site)
        try:
            shown = {CLINICAL: found} if (found := read_shared(answer)) else {}
            records.append(make_record(coordinator.round, k, site, read_result(answer), None, Traffic()) | shown)
        except BadMessage as error:
            coordinator.strike(k, str(error))
    return records
