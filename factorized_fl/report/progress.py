"""Live progress of a run and of decoding: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from factorized_fl.config import Config
from factorized_fl.core.server import Sampling
from factorized_fl.data.images import counting
from factorized_fl.report.tables import format_bytes, model_line, scenario_table
from factorized_fl.results.schema import ACCURACY, Record, metric_of, score_of
from factorized_fl.results.words import method_title, score_text

if TYPE_CHECKING:
    from factorized_fl.simulate.build import Federation

_SILENCE = 5.0  # seconds between lines while images are decoded
_LONG_ROUND = 30.0  # seconds between lines within one round in a log


@contextmanager
def reporting_images(console: Console) -> Iterator[None]:
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


def _clock(seconds: float | None) -> str:
    """A time as h:mm:ss."""
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


class _TimeLeft(ProgressColumn):
    """The time left as `seconds` estimates it; rich's own estimate counts earlier work as done in an instant."""

    def __init__(self, seconds: Callable[[], float | None]) -> None:
        super().__init__()
        self.seconds = seconds

    def render(self, task: Task) -> Text:
        """Return the time left."""
        return Text(f"{_clock(self.seconds())} left")


class _Bar(Progress):
    """A bar below a line of text, which may be as long as the terminal is wide."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the line of every task, then its bar."""
        for task in (task for task in self.tasks if task.visible):
            yield Text(": ".join(filter(None, (task.description, task.fields["note"]))), overflow="fold")
            yield self.make_tasks_table([task])


def clients_per_round(config: Config) -> int:
    """Return the number of clients that train in each round."""
    return Sampling(config.seed, config.clients, config.fraction).per_round


class ProgressObserver:
    """Shows rounds, clients, score, bytes and time left; in a log as lines, at least `seldom` seconds apart."""

    def __init__(self, console: Console, title: str, seldom: float = 0.0, details: bool = False) -> None:
        self.console, self.title, self.seldom, self.details = console, title, seldom, details
        self.bytes = self.rounds = self.trained = 0
        self.latest: dict[int, float] = {}
        self.metric = ACCURACY
        self.began = self.last_line = time.monotonic()
        self.open = ExitStack()
        self.before = 0  # clients trained in the runs before this one
        self.total: int | None = None  # clients to train in all runs and rounds
        self.done = self.done_here = 0  # clients trained, and those of them trained by this process
        self.first = self.latest_done = self.began
        self.bar = _Bar(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("clients,"),
            TimeElapsedColumn(),
            _TimeLeft(self.seconds_left),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "ProgressObserver":
        self.open.enter_context(self.bar)
        self.open.enter_context(reporting_images(self.console))
        self.task = self.bar.add_task(self.title, total=None, note="reading data")
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error and not self.done_here:
            self.bar.update(self.task, visible=False)  # of a run that was refused
        self.open.close()

    def started(self, federation: "Federation", done: int) -> None:
        """Set the bar to the number of clients to train in all rounds."""
        config = federation.config
        if self.details:
            self.console.print(scenario_table(federation.scenario))
            self.console.print(model_line(config.model, *federation.parameters()), highlight=False)
        self.rounds = config.rounds
        self.per_round = clients_per_round(config)
        self.total = self.total or self.rounds * self.per_round
        if not self.done_here:
            self.first = time.monotonic()
        self._count(done * self.per_round, "")

    def client_done(self, round_number: int, client: int) -> None:
        """Count one more trained client."""
        self.trained += 1
        self.done_here += 1
        self.latest_done = time.monotonic()
        self._count((round_number - 1) * self.per_round + self.trained, self._note(round_number))
        done = f"{self.trained} of {self.per_round} clients trained"
        self._print(f"round {round_number}/{self.rounds}: {done}", _LONG_ROUND)

    def round_done(self, round_number: int, records: Sequence[Record]) -> None:
        """Count one more complete round."""
        tested = {record["client"]: score for record in records if (score := score_of(record)) is not None}
        self.latest |= tested
        self.metric = next((metric_of(record) for record in records if record["client"] in tested), self.metric)
        self.bytes += sum(record["up_bytes"] + record["down_bytes"] for record in records)
        self.done_here += self.per_round - self.trained  # clients that dropped out count as trained
        self.latest_done = time.monotonic()
        self.trained = 0
        note = self._note(round_number)
        self._count(round_number * self.per_round, note)
        self._print(note)

    def seconds_left(self) -> float | None:
        """Return the estimate of the seconds until the end; None before the first client is trained."""
        if not self.done_here or self.total is None:
            return None
        each = (self.latest_done - self.first) / self.done_here
        return max(0.0, each * (self.total - self.done) - (time.monotonic() - self.latest_done))

    def _count(self, done: int, note: str) -> None:
        """Show so many trained clients of this run."""
        self.done = self.before + done
        self.bar.update(self.task, description=self.title, total=self.total, completed=self.done, note=note)

    def _print(self, what: str, after: float = 0.0) -> None:
        """Print a line if there is no bar and the last line is old enough."""
        now = time.monotonic()
        if not self.console.is_terminal and now - self.last_line >= max(after, self.seldom):
            line = f"{self.title}: {what}, {now - self.began:.0f} s{self._ending()}"
            self.console.print(line, highlight=False, soft_wrap=True)
            self.last_line = now

    def _ending(self) -> str:
        """Return the end of a line of a log."""
        return ""

    def _note(self, round_number: int) -> str:
        note = f"round {round_number}/{self.rounds}"
        if self.latest:
            mean = sum(self.latest.values()) / len(self.latest)
            note += f", {self.metric} {score_text(self.metric, mean, 1)}, {format_bytes(self.bytes)}"
        return note


class ComparisonObserver(ProgressObserver):
    """Shows the progress and the time left of all runs of a comparison as one.

    Complete runs of an earlier attempt are not run again: they count as done when the next run starts.
    """

    def __init__(self, console: Console, configs: Sequence[Config], seldom: float = 0.0) -> None:
        super().__init__(console, f"{len(configs)} runs", seldom)
        self.configs = list(configs)
        self.sizes = [config.rounds * clients_per_round(config) for config in configs]
        self.total = sum(self.sizes)

    def started(self, federation: "Federation", done: int) -> None:
        """Begin with the next run."""
        config = federation.config
        index = self.configs.index(config)
        self.before = sum(self.sizes[:index])
        own = ["control"] if config.control else []
        what = [f"run {index + 1}/{len(self.configs)}", method_title(config.method), *own, *self._own(config)]
        self.title = f"{', '.join(what)}, seed {config.seed}"
        self.latest, self.bytes, self.trained = {}, 0, 0
        super().started(federation, done)

    def _ending(self) -> str:
        return f", {_clock(self.seconds_left())} left"

    def _own(self, config: Config) -> list[str]:
        """Return the settings in which runs of this method differ, except the seed."""
        same = [{**asdict(other), **other.options} for other in self.configs if other.method == config.method]
        values = {**asdict(config), **config.options}
        names = [name for name in values if name not in ("seed", "options", "control")]
        return [f"{name}={values[name]}" for name in names if any(other[name] != values[name] for other in same)]
