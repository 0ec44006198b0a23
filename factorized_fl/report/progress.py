"""Live progress of a run: a bar on a terminal, plain lines elsewhere; and of images that are decoded."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from factorized_fl.data.images import counting
from factorized_fl.report.tables import size
from factorized_fl.results.rundir import Record
from factorized_fl.simulate.build import Federation
from factorized_fl.simulate.rounds import sampling_of

_SILENCE = 5.0  # seconds after which one wants to know that it goes on
_LONG_ROUND = 30.0  # seconds after which a log says how far a round is


@contextmanager
def images_told(console: Console) -> Iterator[None]:
    """While this lasts, say now and then how many images were looked at."""
    last = 0.0

    def tell(count: int) -> None:
        nonlocal last
        now = time.monotonic()
        if count == 1:
            last = now  # reading files through for the cache's key comes before, and may take long
        elif now - last > _SILENCE:
            console.print(f"looked at {count:,} images", highlight=False)
            last = now

    with counting(tell):
        yield


class ProgressObserver:
    """Shows rounds, clients, accuracy so far, bytes and time left.

    In a log, where there is no bar, it is a line per round, and lines inside rounds that are long; never more than one
    in so many seconds as `seldom` says.
    """

    def __init__(self, console: Console, title: str, seldom: float = 0.0) -> None:
        self.console, self.title, self.seldom = console, title, seldom
        self.bytes = 0
        self.latest: dict[int, float] = {}
        self.rounds = 0
        self.began = self.said = time.monotonic()
        self.trained = 0
        self.told = images_told(console)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "ProgressObserver":
        self.bar.start()
        self.told.__enter__()
        self.task = self.bar.add_task(self.title, total=None, note="reading data")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.told.__exit__(kind, error, traceback)
        self.bar.stop()

    def started(self, federation: Federation, done: int) -> None:
        """Know how much there is to do."""
        config = federation.config
        self.rounds = config.rounds
        self.per_round = sampling_of(federation).per_round
        total = self.rounds * self.per_round
        self.bar.update(self.task, total=total, completed=done * self.per_round, note="")

    def client_done(self, round: int, client: int) -> None:
        """One more client trained."""
        self.trained += 1
        self.bar.update(self.task, advance=1, note=self._note(round))
        self._say(f"round {round}/{self.rounds}: {self.trained} of {self.per_round} clients trained", _LONG_ROUND)

    def round_done(self, round: int, records: Sequence[Record]) -> None:
        """One more round complete."""
        self.latest |= {record["client"]: record["accuracy"] for record in records if record["accuracy"] is not None}
        self.bytes += sum(record["up_bytes"] + record["down_bytes"] for record in records)
        self.trained = 0
        note = self._note(round)
        self.bar.update(self.task, completed=round * self.per_round, note=note)
        self._say(note)

    def _say(self, what: str, after: float = 0.0) -> None:
        """A line, where there is no bar and the last one was long enough ago."""
        now = time.monotonic()
        if not self.console.is_terminal and now - self.said >= max(after, self.seldom):
            self.console.print(f"{self.title}: {what}, {now - self.began:.0f} s", highlight=False, soft_wrap=True)
            self.said = now

    def _note(self, round: int) -> str:
        parts = [f"round {round}/{self.rounds}"]
        if self.latest:
            mean = sum(self.latest.values()) / len(self.latest)
            parts += [f"accuracy {100 * mean:.1f}%", size(self.bytes)]
        return ", ".join(parts)
