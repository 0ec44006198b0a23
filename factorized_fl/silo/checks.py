"""Checks on tensors that arrive: names, shapes, types, finiteness, norms; and of a site's answer to a round."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import safetensors
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import ENCRYPTED, FINGERPRINT
from factorized_fl.core.outliers import limit_changes, shorten
from factorized_fl.core.payload import decode
from factorized_fl.core.views import Evaluated, Tensors, Trained
from factorized_fl.silo.clinical import CLINICAL, read_shared
from factorized_fl.silo.messages import BadMessage, Message

LARGEST_GROWTH = 10.0  # largest growth of a tensor's norm in one round; far above that of training
# The least norm that growth is measured from, as the size of an entry: some tensors begin at zero.
_LEAST, _LEAST_OF_FINGERPRINTS = 1.0, 100.0
_SPARE = 200  # bytes of a payload's header for each tensor


def largest_message(expected: Mapping[str, torch.Tensor]) -> int:
    """An upper bound on the bytes of a message with these tensors."""
    return 200_000 + sum(t.numel() * t.element_size() + len(name) + _SPARE for name, t in expected.items())


def read_tensors(payload: bytes, expected: Mapping[str, torch.Tensor]) -> Tensors:
    """The tensors of a payload; raises BadMessage unless they are those expected, finite and of a plausible norm."""
    _check_claims(payload, expected)
    try:
        tensors = decode(payload) if payload else {}
    except (UserError, OverflowError, MemoryError) as error:
        raise BadMessage(f"its tensors cannot be read: {error}") from None
    if tensors.keys() != expected.keys():
        odd = sorted(tensors.keys() ^ expected.keys())[0]
        raise BadMessage(f"it must hold {len(expected)} tensors, but {odd[:80]!r} is missing or not expected")
    for name, tensor in tensors.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            found = f"{tensor.dtype} {list(tensor.shape)}"
            raise BadMessage(f"{name} is {found} where {wanted.dtype} {list(wanted.shape)} is due")
    check_growth(tensors, expected)
    return tensors


def check_growth(tensors: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor]) -> None:
    """Raises BadMessage for tensors that are not finite, or that grew more than training in one round can cause."""
    for name, tensor in tensors.items():
        if name.startswith(ENCRYPTED):  # only the sites can check these
            continue
        if not tensor.isfinite().all():
            raise BadMessage(f"{name} is not finite")
        least = _LEAST_OF_FINGERPRINTS if name == FINGERPRINT else _LEAST
        norm, usual = float(tensor.double().norm()), float(before[name].double().norm())
        limit = LARGEST_GROWTH * max(usual, least * tensor.numel() ** 0.5)
        if norm > limit:
            raise BadMessage(f"{name} has the norm {norm:.3g}, above the limit of {limit:.3g}")


def _check_claims(payload: bytes, expected: Mapping[str, torch.Tensor]) -> None:
    """Checks the header before anything is allocated: a few bytes can claim a tensor that would fill all memory."""
    if not payload:
        return
    try:
        entries = safetensors.deserialize(payload)
        length = int.from_bytes(payload[:8], "little")
        sparse = json.loads(json.loads(payload[8 : 8 + length]).get("__metadata__", {}).get("sparse", "{}"))
    except Exception as error:
        raise BadMessage(f"its tensors cannot be read ({type(error).__name__})") from None
    if not isinstance(sparse, dict) or len(entries) > 2 * len(expected):
        raise BadMessage("it holds more tensors than are due")
    for name, shape in sparse.items():
        if name not in expected or list(expected[name].shape) != shape:
            raise BadMessage(f"{str(name)[:80]!r} is not among the tensors that are due in that shape")


@dataclass(frozen=True)
class Update:
    """A site's message after its training."""

    tensors: Tensors
    trained: Trained
    result: Evaluated | None  # its test result, if the site reports it
    seconds: float  # duration of its own work
    epsilon: dict[str, float]  # epsilon spent, as an entry of the metrics; empty without privacy_epsilon
    declined: str  # why the site trained its own tensors in place of the download; empty if it used that
    clinical: Mapping[str, Any] | None = None  # metrics that the site chose to show after the last round

    @property
    def shown(self) -> dict[str, Any]:
        """Return the entries of a metrics record besides the numbers of every site."""
        return {CLINICAL: self.clinical} if self.clinical else {}


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
        epsilon={} if (spent := answer.number("epsilon")) is None else {"epsilon": spent},
        declined=answer.text("declined") if "declined" in answer.fields else "",
        clinical=read_shared(answer),
    )


def read_result(answer: Message) -> Evaluated | None:
    """The test result that a site chose to report, or None."""
    if answer.fields.get("total") is None:
        return None
    loss, total = answer.number("loss"), answer.whole("total", low=1)
    return Evaluated(answer.whole("correct", high=total), total, math.nan if loss is None else loss)


def limited(
    updates: Mapping[int, Update],
    own: Callable[[int, Tensors], Tensors],
    sent: Mapping[int, Tensors],
    limit: float,
    say: Callable[[int, str], None],
) -> dict[int, Update]:
    """The updates, with those shortened that changed far more than those of the group.

    `own` gives a site's tensors before the round, `sent` what it received; `say` is called for each shortened site.
    """
    begun = {k: own(k, update.tensors) | sent.get(k, {}) for k, update in updates.items()}
    good = dict(updates)
    for k, factors in limit_changes(begun, {k: update.tensors for k, update in updates.items()}, limit).items():
        tensors = good[k].tensors
        shorter = {name: shorten(begun[k][name], tensors[name], factor) for name, factor in factors.items()}
        good[k] = replace(good[k], tensors=tensors | shorter)
        least = min(factors.values())
        say(k, f"changed far more than the group: its change is shortened, to {least:.1%} at least")
    return good
