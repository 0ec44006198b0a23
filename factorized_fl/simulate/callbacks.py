"""Callbacks: plain functions that are called after every round, and early stopping."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from factorized_fl.core.errors import UserError
from factorized_fl.results.rundir import Record, RunDirectory
from factorized_fl.results.schema import score_of

if TYPE_CHECKING:
    from factorized_fl.simulate.build import Federation
    from factorized_fl.simulate.run import Observer


@dataclass
class RoundState:
    """The argument of a callback after a round.

    Args:
        round_number: the round, from 1.
        rounds: the number of rounds that are planned.
        records: the metrics of this round's clients, numbered from 1, as `metrics.jsonl` has them.
        directory: the run directory, with the metrics of all rounds.
        stop_after: the round after which there is only one more; None without an early end.
    """

    round_number: int
    rounds: int
    records: list[Record]
    directory: RunDirectory
    stop_after: int | None = None

    @property
    def score(self) -> float | None:
        """The mean over the tested clients of the primary metric; None if no client was tested."""
        return _mean([score_of(record) for record in self.records])

    @property
    def train_loss(self) -> float | None:
        """The mean training loss over the clients that trained; None if none did or all diverged."""
        return _mean([record["train_loss"] for record in self.records])

    def stop(self) -> None:
        """End the run after one more round, in which all clients are tested."""
        self.stop_after = self.round_number


Callback = Callable[[RoundState], object]


class EarlyStopping:
    """Ends a run if the clients' mean score has not risen for some tested rounds.

    A resumed run stops after the same round. Choose the score on validation examples (``score="validation"``), because
    otherwise the test examples decide when to stop.

    Args:
        patience: the number of tested rounds without a better score after which the run ends.
        min_delta: the least rise that counts as better.
    """

    def __init__(self, patience: int = 5, min_delta: float = 0.0) -> None:
        if patience < 1 or not min_delta >= 0:
            raise UserError(f"EarlyStopping needs patience of 1 or more and min_delta of 0 or more, not {patience}.")
        self.patience, self.min_delta = patience, min_delta

    def __call__(self, state: RoundState) -> None:
        """Stop the run after the first round at which the best score was as old as the patience."""
        rounds: dict[int, list[float]] = {}
        for record in state.directory.metrics():
            if (score := score_of(record)) is not None:
                rounds.setdefault(record["round"], []).append(score)
        best, since = -math.inf, 0
        for number in sorted(rounds):
            score = math.fsum(rounds[number]) / len(rounds[number])
            best, since = (score, 0) if score > best + self.min_delta else (best, since + 1)
            if since >= self.patience:
                state.stop_after = number
                return


class CallbackObserver:
    """Calls functions after every round, and ends the run early if one of them asks for it."""

    def __init__(self, callbacks: Sequence[Callback], directory: RunDirectory) -> None:
        self.callbacks, self.directory = list(callbacks), directory
        self.federation: Federation | None = None

    def started(self, federation: "Federation", done: int) -> None:
        """Store the federation, and the round after which an earlier process would have ended it."""
        self.federation = federation
        if done:
            self._call([callback for callback in self.callbacks if isinstance(callback, EarlyStopping)], done, ())

    def client_done(self, round_number: int, client: int) -> None:
        """Do nothing: functions are called at the end of the round."""

    def round_done(self, round_number: int, records: Sequence[Record]) -> None:
        """Call the functions in order."""
        self._call(self.callbacks, round_number, records)

    def _call(self, callbacks: Sequence[Callback], round_number: int, records: Sequence[Record]) -> None:
        assert self.federation is not None
        numbered = [{**record, "client": record["client"] + 1} for record in records]
        state = RoundState(round_number, self.federation.last_round, numbered, self.directory)
        for callback in callbacks:
            callback(state)
            if state.stop_after is not None:
                self.federation.last_round = min(self.federation.last_round, state.stop_after + 1)


def observers_of(callbacks: Sequence["Callback | Observer"], directory: RunDirectory) -> "list[Observer]":
    """Return observers for callbacks: functions are wrapped, observers are returned unchanged.

    Raise UserError for any other object.
    """
    if not isinstance(callbacks, list | tuple):
        raise UserError("callbacks must be a list: write callbacks=[function].")
    functions: list[Callback] = []
    found: list[Observer] = []
    for callback in callbacks:
        if hasattr(callback, "round_done"):
            found.append(cast("Observer", callback))
        elif callable(callback):
            functions.append(callback)
        else:
            raise UserError(f"callbacks has {callback!r}: give functions that take the state of a round.")
    if functions:
        found.append(CallbackObserver(functions, directory))
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
