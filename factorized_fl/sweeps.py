"""A sweep: the same run with every combination of some settings and several seeds, and the best of them."""

import itertools
import json
import math
import multiprocessing
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from factorized_fl.api import run
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.core.named import name_of
from factorized_fl.data.clients import ClientData
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import score_of
from factorized_fl.simulate.side_by_side import run_side_by_side

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class SweepRow:
    """One combination: its settings, the mean score over clients and seeds, and that of each seed."""

    settings: dict[str, Any]
    score: float | None  # None if no client was tested or a score was undefined
    scores: dict[int, float | None]
    folders: dict[int, Path]

    @property
    def spread(self) -> float | None:
        """The standard deviation between seeds; None for one seed."""
        known = [score for score in self.scores.values() if score is not None]
        return statistics.stdev(known) if len(known) > 1 else None


@dataclass(frozen=True)
class Sweep:
    """The combinations of a sweep in the order of the grid."""

    rows: list[SweepRow]

    @property
    def best(self) -> SweepRow:
        """The combination with the highest mean score; raises UserError if none has a score."""
        known = [row for row in self.rows if row.score is not None]
        if not known:
            raise UserError("No combination of this sweep has a score: training diverged, or no client was tested.")
        return max(known, key=lambda row: row.score or 0.0)

    def table(self) -> list[dict[str, Any]]:
        """One entry for each combination: settings, mean score, spread between seeds, and whether it is the best."""
        best = self.best if any(row.score is not None for row in self.rows) else None
        return [{**row.settings, "score": row.score, "spread": row.spread, "best": row is best} for row in self.rows]

    def to_pandas(self) -> "pandas.DataFrame":
        """The table for pandas; raises UserError without it."""
        try:
            import pandas
        except ImportError:
            raise UserError('to_pandas needs the library pandas: pip install "factorized-fl[pandas]".') from None
        return pandas.DataFrame(self.table())

    def __repr__(self) -> str:
        cells = [[_cell(value) for value in row.values()] for row in self.table()]
        heads = list(self.table()[0])
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        return "\n".join("  ".join(map(str.rjust, line, widths)) for line in (heads, *cells))

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.table()[0])
        rows = ("".join(f"<td>{escape(_cell(value))}</td>" for value in row.values()) for row in self.table())
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def sweep(
    config: str | Path | Sequence[ClientData],
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int] = (1,),
    *,
    score: str = "validation",
    jobs: int = 1,
    out: Path | str = "runs/sweep",
    **settings: Any,
) -> Sweep:
    """Run every combination of the grid with every seed.

    Complete runs in `out` are not run again, and interrupted ones are continued.

    Args:
        config: clients, a preset or a file, as in `ffl.run`.
        grid: values by setting, such as ``{"lr": [0.01, 0.1], "method": ["fedavg", "factorized-peers"]}``.
        seeds: the seeds of each combination.
        score: "validation" chooses on validation examples, and leaves the test examples for the final run.
        jobs: runs at a time, each in a process of one thread. On a GPU, or without fork, one run at a time.
        out: the folder of the runs and of `sweep.json`.
        settings: the other settings of all runs, as in `ffl.run`.

    Returns:
        The table of mean scores, with the best settings.

    Raises:
        UserError: if a setting is wrong; where that is possible, before anything is run.
    """
    if not grid or not all(isinstance(values, list | tuple) and len(values) for values in grid.values()):
        raise UserError("grid must name settings with lists of values, for example {'lr': [0.01, 0.1]}.")
    if twice := sorted({*grid} & {*settings, "seed", "score", "out", "resume"}):
        raise UserError(f"'{twice[0]}' is in the grid and is also an argument: name it in one place.")
    if isinstance(seeds, int) or not seeds or len({*seeds}) < len(seeds):
        raise UserError(f"seeds = {seeds} must be different numbers, at least one.")
    if "seed" in settings:
        raise UserError("A sweep takes several seeds: write seeds=[1, 2].")
    root = Path(out)
    given = config if isinstance(config, str | Path) else list(config)
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    folders = [
        {seed: root / f"{_folder(index, chosen)}-seed{seed}" for seed in seeds}
        for index, chosen in enumerate(combinations)
    ]
    work = [
        _job(given, {**settings, **chosen, "seed": seed, "score": score}, of[seed])
        for chosen, of in zip(combinations, folders, strict=True)
        for seed in seeds
    ]
    if _may_fork(jobs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads: the child uses one thread
            for _ in run_side_by_side(work, jobs, "fork", threads=1):  # the parent's thread pool does not exist there
                continue
    else:
        for each in work:
            each()
    rows = []
    for chosen, of in zip(combinations, folders, strict=True):
        scores = {seed: _score(RunDirectory(folder)) for seed, folder in of.items()}
        known = [value for value in scores.values() if value is not None]
        mean = math.fsum(known) / len(known) if len(known) == len(scores) else None
        rows.append(SweepRow(chosen, mean, scores, of))
    found = Sweep(rows)
    table = [{name: _plain(value) for name, value in row.items()} for row in found.table()]
    write_atomically(
        root / "sweep.json", json.dumps({"score": score, "seeds": list(seeds), "rows": table}, indent=2).encode()
    )
    return found


def _job(given: Any, settings: dict[str, Any], folder: Path) -> Callable[[], None]:
    """Return a function that makes one run."""

    def make() -> None:
        run(given, folder, resume=folder.exists(), progress=False, **settings)

    return make


def _may_fork(jobs: int) -> bool:
    """Return whether to use processes; warn if they were asked for and are impossible."""
    if jobs < 1:
        raise UserError(f"jobs = {jobs} must be 1 or more.")
    if jobs == 1:
        return False
    if torch.cuda.is_available() or "fork" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":
        warnings.warn(f"jobs = {jobs} needs Linux without a GPU: runs are made one after the other.", stacklevel=3)
        return False
    return True


def _score(directory: RunDirectory) -> float | None:
    """Return the mean score over the clients of a complete run."""
    summary = directory.summary()
    assert summary is not None
    values = [value for client in summary["clients"] if (value := score_of(client)) is not None]
    return math.fsum(values) / len(values) if values else None


def _folder(index: int, chosen: Mapping[str, Any]) -> str:
    """Return the name of a combination's runs: its number and its settings."""
    words = "-".join(f"{name}={_plain(value)}" for name, value in chosen.items())
    return "".join(c if c.isalnum() or c in "=.-_" else "_" for c in f"{index + 1:02}-{words}")[:100]


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a class or function by its name."""
    if isinstance(value, str | int | float | bool | list | tuple) or value is None:
        return value
    return name_of("grid", value) if callable(value) else str(value)


def _cell(value: Any) -> str:
    """Return a value as a cell of the table."""
    if isinstance(value, bool):
        return "*" if value else ""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(_plain(value))
