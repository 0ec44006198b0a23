"""A site's answer to a round, read once and checked as a whole."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from factorized_fl.core.views import Evaluated, Tensors, Trained
from factorized_fl.silo.checks import read_tensors
from factorized_fl.silo.messages import BadMessage, Message


@dataclass(frozen=True)
class Update:
    """What a site sends after its training."""

    tensors: Tensors
    trained: Trained
    result: Evaluated | None  # its test result, if the site reports it
    seconds: float  # of its own work


def read_update(answer: Message, expected: Mapping[str, torch.Tensor]) -> Update:
    """The update in an answer; raises BadMessage if anything in it is malformed."""
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
    """The test result that a site chose to report, or None."""
    if answer.fields.get("total") is None:
        return None
    loss, total = answer.number("loss"), answer.whole("total", low=1)
    return Evaluated(answer.whole("correct", high=total), total, math.nan if loss is None else loss)
