"""A site's answer to a round, read once and checked as a whole: afterwards nothing of it can surprise anybody."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from factorized_fl.core.ledger import Load, Payloads, Traffic
from factorized_fl.engine import Evaluated, Trained
from factorized_fl.methods import Cost, Roles, Tensors
from factorized_fl.results.rundir import Record
from factorized_fl.silo.checks import read_tensors
from factorized_fl.silo.messages import BadMessage, Message
from factorized_fl.simulate.rounds import make_record


@dataclass(frozen=True)
class Update:
    """What a site sends after its training."""

    tensors: Tensors
    trained: Trained
    result: Evaluated | None  # its test, if it chooses to report that
    seconds: float  # of its own work

    def record(self, round: int, k: int, site: str, down: Load, roles: Roles, formula: Cost) -> Record:
        """The line of the coordinator's metrics."""
        up = load_of(self.tensors, roles)
        cost = Traffic(
            up_parameters=up.parameters,
            down_parameters=down.parameters,
            up_bytes=up.bytes,
            down_bytes=down.bytes,
            up_formula=formula.up,
            down_formula=formula.down,
            up_roles=up.roles,
            down_roles=down.roles,
        )
        return make_record(round, k, site, self.result, self.trained, cost)


def read_update(answer: Message, expected: Mapping[str, torch.Tensor]) -> Update:
    """The update in an answer, if it is one in every respect."""
    if answer.text("result") != "trained":
        raise BadMessage(f"it is {answer.text('result')}: {answer.text('reason')}")
    loss = answer.number("train_loss")
    return Update(
        tensors=read_tensors(answer.payload, expected),
        trained=Trained(math.nan if loss is None else loss, answer.whole("steps")),
        result=read_result(answer),
        seconds=answer.number("seconds") or 0.0,
    )


def read_result(answer: Message) -> Evaluated | None:
    """The test result that a site chose to report, if any."""
    if answer.fields.get("total") is None:
        return None
    loss, total = answer.number("loss"), answer.whole("total", low=1)
    return Evaluated(answer.whole("correct", high=total), total, math.nan if loss is None else loss)


def load_of(tensors: Tensors, roles: Roles) -> Load:
    """What these tensors cost to send."""
    payloads = Payloads([0], roles)
    for name, tensor in tensors.items():
        payloads.add(name, tensor.unsqueeze(0))
    return payloads.loads()[0]
