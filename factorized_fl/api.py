"""The same from Python as from the command line."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from factorized_fl.config import Config, as_table, read_table, resolve
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.presets import find_preset
from factorized_fl.report import write
from factorized_fl.report.comparison import refuse_losing
from factorized_fl.report.tables import Comparison
from factorized_fl.report.tables import compare as compare_summaries
from factorized_fl.results.rundir import Record, RunDirectory
from factorized_fl.results.verdict import other_images
from factorized_fl.simulate import run as federation_run
from factorized_fl.simulate.run import Observer

COMPARISON = "comparison.json"


def configure(preset: str | Path, method: str | None = None, /, **settings: Any) -> Config:
    """A configuration from a preset's name or a TOML file's path, a method, and single settings."""
    return resolve(_table(preset), method, settings)


def _table(preset: str | Path) -> Mapping[str, Any]:
    """A preset's table, or a file's, laid over that of the preset it names; what a run wrote down is complete."""
    if not str(preset).endswith(".toml"):
        return find_preset(str(preset))
    table = read_table(Path(preset))
    if not table.get("preset") or {field.name for field in fields(Config)} <= table.keys():
        return table
    base = find_preset(str(table["preset"]))
    for_methods = {**base.get("methods", {}), **as_table(table.get("methods", {}), "methods")}
    return {**base, **table, "methods": for_methods}


def run(
    config: Config | str | Path,
    out: Path | str | None = None,
    *,
    method: str | None = None,
    data: Path | str | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    device: str = "auto",
    **settings: Any,
) -> RunDirectory:
    """Run a federation: ``run("demo", method="factorized-fl", rounds=3)``."""
    if isinstance(config, str | Path):
        config = configure(config, method, **settings)
    elif method is not None or settings:
        raise UserError("A Config is complete: give method and settings to `configure`, or a preset's name here.")
    return federation_run.run(
        config,
        out or default_directory(config),
        data=Path(data) if data else None,
        resume=resume,
        observers=observers,
        device=device,
    )


def default_directory(config: Config) -> Path:
    """Where a run goes when nobody says: runs/PRESET/METHOD-seedN."""
    return Path("runs") / (config.preset or config.dataset) / f"{config.method}-seed{config.seed}"


def comparison_directory(preset: str) -> Path:
    """Where a comparison goes when nobody says."""
    return Path("runs") / f"{Path(preset).stem}-comparison"


def compare(
    preset: str,
    /,
    methods: Sequence[str],
    seeds: Sequence[int] | None = None,
    out: Path | str | None = None,
    *,
    data: Path | str | None = None,
    resume: bool = False,
    watch: Callable[[Config], AbstractContextManager[Observer]] | None = None,
    device: str = "auto",
    **settings: Any,
) -> list[Comparison]:
    """Run several methods over several seeds and compare them; rows also go to comparison.json.

    Without seeds it is the one that the preset or file has.
    """
    seeds = [_table(preset).get("seed", Config.seed)] if seeds is None else seeds
    if not methods or not seeds:
        raise UserError("A comparison needs at least one method and one seed.")
    if "seed" in settings:
        raise UserError("A comparison takes several seeds: `ffl compare PRESET --seeds 1,2,3`.")
    for named in (methods, seeds):
        if again := [name for name in named if list(named).count(name) > 1]:
            raise UserError(f"{again[0]} is named twice: once is enough.")
    configs = {
        (method, seed): configure(preset, method, **{**settings, "seed": seed}) for method in methods for seed in seeds
    }
    root = Path(out) if out else comparison_directory(preset)
    if not resume and (root / COMPARISON).exists():
        raise UserError(f"'{root}' already holds a comparison: add --resume to go on, or choose another --out.")
    refuse_losing(root / COMPARISON, methods, seeds)
    of_seed: dict[int, RunDirectory] = {}
    summaries: dict[str, list[Record]] = {method: [] for method in methods}
    for (method, seed), config in configs.items():
        with watch(config) if watch else nullcontext() as observer:
            directory = run(
                config,
                root / f"{method}-seed{seed}",
                data=data,
                resume=resume,
                observers=[observer] if observer else [],
                device=device,
            )
        same = of_seed.setdefault(seed, directory)
        if other_images(same.clients(), directory.clients()):
            raise UserError(
                f"'{same.path}' and '{directory.path}' have different images, so they cannot be compared: "
                "give the same --data, or choose another --out."
            )
        summary = directory.summary()
        assert summary is not None
        summaries[method].append(summary)
    rows = compare_summaries(summaries)
    content = [asdict(row) | {"better": row.better} for row in rows]
    write_atomically(root / COMPARISON, json.dumps(content, indent=2).encode())
    return rows


def report(
    runs: Path | str | Sequence[Path | str], out: Path | str | None = None, baseline: Path | str | None = None
) -> Path:
    """Write the page of one run, or of several, or of folders of runs; returns where it is."""
    paths = [Path(runs)] if isinstance(runs, Path | str) else [Path(run) for run in runs]
    return write.write_report(paths, Path(out) if out else None, Path(baseline) if baseline else None)


@dataclass(frozen=True)
class Pilot:
    """What Clustered-FL's two norms did while nothing split, and the thresholds that follow (docs/methods.md)."""

    norms: list[tuple[int, float, float]]  # round, norm of the mean update, norm of the longest update

    @property
    def eps1(self) -> float:
        """A tenth of the largest mean update."""
        return max(mean for _, mean, _ in self.norms) / 10

    @property
    def eps2(self) -> float:
        """The lenient end of the range from eps1 to ten times eps1."""
        return self.eps1


def pilot(
    preset: str,
    /,
    out: Path | str | None = None,
    *,
    data: Path | str | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    device: str = "auto",
    **settings: Any,
) -> Pilot:
    """Run Clustered-FL without splits and look at its norms."""
    if "eps1" in settings:
        raise UserError("A pilot is there to find eps1: leave it out.")
    config = configure(preset, "clustered-fl", **settings, eps1=0.0)
    if config.rounds < 2:
        raise UserError("A pilot needs at least 2 rounds: the first one has nothing to mix.")
    directory = run(
        config, out or f"runs/{Path(preset).stem}-pilot", data=data, resume=resume, observers=observers, device=device
    )
    norms = [(round, *directory.mixing(round)["state.norms"].tolist()) for round in directory.mixed_rounds()]
    if not norms:
        raise UserError(
            "In no round of this pilot was there anything to mix: choose a smaller dropout, or more rounds."
        )
    if not all(math.isfinite(norm) for row in norms for norm in row):
        raise UserError("Training diverged in this pilot, so its norms say nothing: choose a smaller lr.")
    return Pilot(norms)
