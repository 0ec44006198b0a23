"""Live progress of a run and of decoding: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from factorized_fl.core.server import Sampling
from factorized_fl.data.images import counting
from factorized_fl.report.tables import format_bytes, model_line, scenario_table
from factorized_fl.results.schema import Record

if TYPE_CHECKING:
    from factorized_fl.simulate.build import Federation

_SILENCE = 5.0  # seconds between lines while images are decoded
_LONG_ROUND = 30.0  # seconds between lines within one round in a log


@contextmanager
def images_told(console: Console) -> Iterator[None]:
    """Print the number of decoded images every few seconds while the context lasts."""
    last = 0.0

    def tell(count: int) -> None:
        nonlocal last
        now = time.monotonic()
        if count == 1:
            last = now  # computing the cache key comes before and may take long
        elif now - last > _SILENCE:
            console.print(f"looked at {count:,} images", highlight=False)
            last = now

    with counting(tell):
        yield


class ProgressObserver:
    """Shows rounds, clients, accuracy, bytes and time left; in a log as lines, at least `seldom` seconds apart."""

    def __init__(self, console: Console, title: str, seldom: float = 0.0, details: bool = False) -> None:
        self.console, self.title, self.seldom, self.details = console, title, seldom, details
        self.bytes = self.rounds = self.trained = 0
        self.latest: dict[int, float] = {}
        self.began = self.last_line = time.monotonic()
        self.open = ExitStack()
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
        self.open.enter_context(self.bar)
        self.open.enter_context(images_told(self.console))
        self.task = self.bar.add_task(self.title, total=None, note="reading data")
        return self

    def __exit__(self, *_: object) -> None:
        self.open.close()

    def started(self, federation: "Federation", done: int) -> None:
        """Set the bar to the number of clients to train in all rounds."""
        config = federation.config
        if self.details:
            self.console.print(scenario_table(federation.scenario))
            self.console.print(model_line(config.model, *federation.parameters()), highlight=False)
        self.rounds = config.rounds
        self.per_round = Sampling(config.seed, config.clients, config.fraction).per_round
        self.bar.update(self.task, total=self.rounds * self.per_round, completed=done * self.per_round, note="")

    def client_done(self, round_number: int, client: int) -> None:
        """Count one more trained client."""
        self.trained += 1
        self.bar.update(self.task, advance=1, note=self._note(round_number))
        done = f"{self.trained} of {self.per_round} clients trained"
        self._print(f"round {round_number}/{self.rounds}: {done}", _LONG_ROUND)

    def round_done(self, round_number: int, records: Sequence[Record]) -> None:
        """Count one more complete round."""
        self.latest |= {record["client"]: record["accuracy"] for record in records if record["accuracy"] is not None}
        self.bytes += sum(record["up_bytes"] + record["down_bytes"] for record in records)
        self.trained = 0
        note = self._note(round_number)
        self.bar.update(self.task, completed=round_number * self.per_round, note=note)
        self._print(note)

    def _print(self, what: str, after: float = 0.0) -> None:
        """Print a line if there is no bar and the last line is old enough."""
        now = time.monotonic()
        if not self.console.is_terminal and now - self.last_line >= max(after, self.seldom):
            self.console.print(f"{self.title}: {what}, {now - self.began:.0f} s", highlight=False, soft_wrap=True)
            self.last_line = now

    def _note(self, round_number: int) -> str:
        note = f"round {round_number}/{self.rounds}"
        if self.latest:
            mean = sum(self.latest.values()) / len(self.latest)
            note += f", accuracy {100 * mean:.1f}%, {format_bytes(self.bytes)}"
        return note
