"""The same from Python as from the command line."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from factorized_fl.config import Config, read_table, resolve
from factorized_fl.federation import run as federation_run
from factorized_fl.federation.run import Observer
from factorized_fl.federation.rundir import Record, RunDirectory, write_atomically
from factorized_fl.presets import find_preset
from factorized_fl.report.tables import Comparison
from factorized_fl.report.tables import compare as compare_summaries


def configure(preset: str, method: str | None = None, **settings: Any) -> Config:
    """A configuration from a preset's name or a TOML file's path, a method, and single settings."""
    table = read_table(Path(preset)) if preset.endswith(".toml") else find_preset(preset)
    return resolve(table, method, settings)


def run(
    config: Config | str,
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
    if isinstance(config, str):
        config = configure(config, method, **settings)
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


def compare(
    preset: str,
    methods: Sequence[str],
    seeds: Sequence[int] = (1,),
    out: Path | str | None = None,
    *,
    data: Path | str | None = None,
    resume: bool = False,
    watch: Callable[[Config], AbstractContextManager[Observer]] | None = None,
    device: str = "auto",
    **settings: Any,
) -> list[Comparison]:
    """Run several methods over several seeds and compare them; rows also go to comparison.json."""
    configs = {
        (method, seed): configure(preset, method, **{**settings, "seed": seed}) for method in methods for seed in seeds
    }
    root = Path(out) if out else Path("runs") / f"{Path(preset).stem}-comparison"
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
        summary = directory.summary()
        assert summary is not None
        summaries[method].append(summary)
    rows = compare_summaries(summaries)
    write_atomically(root / "comparison.json", json.dumps([asdict(row) for row in rows], indent=2).encode())
    return rows
