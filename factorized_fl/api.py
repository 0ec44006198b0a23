"""The functions behind the command line, for use from Python."""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console

from factorized_fl.config import Config, as_table, read_table, resolve, upgrade
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.data.clients import ClientData
from factorized_fl.export.export import Exported, export_run
from factorized_fl.nn.own import Factory, model_name
from factorized_fl.presets import find_preset
from factorized_fl.report.page import write_report
from factorized_fl.report.progress import ProgressObserver
from factorized_fl.report.trackers import make_tracker
from factorized_fl.results.comparison import Comparison, compare_methods, comparison_json, refuse_losing, run_folder
from factorized_fl.results.effect import CONTROL
from factorized_fl.results.entries import check_configs, check_settings, parse_entry, plan_runs
from factorized_fl.results.reading import RunFiles, read_run
from factorized_fl.results.references import different_images
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import FEDERATION
from factorized_fl.results.words import method_title
from factorized_fl.sections import check_tables, flatten, is_nested
from factorized_fl.silo.agreement import read_kit
from factorized_fl.silo.settings import chosen_data
from factorized_fl.silo.site_data import site_scenario
from factorized_fl.silo.site_export import export_control, export_now
from factorized_fl.simulate.build import refuse_unusable
from factorized_fl.simulate.callbacks import Callback, observers_of
from factorized_fl.simulate.own import Run, own_config, own_run_scenario
from factorized_fl.simulate.run import Observer, run_federation
from factorized_fl.simulate.side_by_side import run_configs
from factorized_fl.simulate.training import bring

COMPARISON = "comparison.json"
_SELDOM = 2.0  # seconds at least between lines of progress in a notebook


def configure(preset: str | Path, method: str | None = None, /, **settings: Any) -> Config:
    """Return a configuration without running it.

    Args:
        preset: the name of a preset, or a TOML file.
        method: the name of a method; by default that of the preset or file.
        settings: options of the run and of the method, which come before those of the preset.

    Returns:
        The complete configuration, which `ffl.run` accepts.

    Raises:
        UserError: if a name is unknown, or a value is outside its limits.
    """
    return resolve(_table(preset), method, settings)


def _table(preset: str | Path) -> Mapping[str, Any]:
    """Return a preset's table, or a file's merged into that of the preset it names; a run's own file is complete."""
    if not isinstance(preset, str | Path):
        raise UserError("Give a preset or a TOML file: clients with own data are trained by ffl.run, method by method.")
    if not str(preset).endswith(".toml"):
        return find_preset(str(preset))
    table = read_table(Path(preset))
    check_tables(table)
    own = {field.name for field in fields(Config)} <= table.keys() or "settle" in as_table(
        table.get("options", {}), "options"
    )
    if is_nested(table):
        table = flatten(table)
    elif not own and len(table) > 1:
        warnings.warn(
            f"'{preset}' has no tables: group its options below [data] [model] [train] [federation] [method].",
            stacklevel=3,
        )
    if "settle" in as_table(table.get("options", {}), "options"):
        table = upgrade(table)  # the configuration of an earlier run
    if not table.get("preset") or {field.name for field in fields(Config)} <= table.keys():
        return table
    base = find_preset(str(table["preset"]))
    for_methods = {**base.get("methods", {}), **as_table(table.get("methods", {}), "methods")}
    return {**base, **table, "methods": for_methods}


def run(
    config: Config | str | Path | Sequence[ClientData],
    out: Path | str | None = None,
    *,
    model: Factory | str | None = None,
    method: str | None = None,
    data: Path | str | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    callbacks: Sequence[Callback | Observer] = (),
    trackers: Sequence[str] = (),
    progress: bool | None = None,
    device: str = "auto",
    **settings: Any,
) -> Run:
    """Run a federation, for example ``run("demo", method="factorized-fl", rounds=3)``.

    Args:
        config: a list of clients with own data; the name of a preset; a TOML file; or a complete `ffl.Config`.
        out: the run directory; by default runs/PRESET/METHOD-seedN.
        model: a class or function (example, outputs) -> network, where `example` is a batch of one input;
            "package.module:factory"; or the name of a built-in network.
        method: the name of a method.
        data: the folder of a preset's dataset.
        resume: continue an interrupted run in `out`.
        observers: objects that are called for every client and round.
        callbacks: functions that are called after every round with an `ffl.RoundState`, such as `ffl.EarlyStopping`.
        trackers: any of "tensorboard", "mlflow" and "wandb".
        progress: whether progress is shown; by default in terminals and notebooks, unless there are `observers`.
        device: "cpu", "cuda", "cuda:1" or "auto".
        settings: options of the run and of the method, such as ``lr=0.1``; they complete what `config` leaves open.

    Returns:
        The run, with its directory, models, tables and verdict.

    Raises:
        UserError: if a setting, the data or the network cannot be used.
    """
    if model is not None:
        settings["model"] = model if isinstance(model, str) else model_name(model)
    settings, brought = bring(settings)
    scenario = None
    if isinstance(config, str | Path):
        config = configure(config, method, **settings)
    elif isinstance(config, Config):
        if method is not None or settings:
            raise UserError("A Config is complete: pass method and settings to `configure`, or a preset's name here.")
    else:
        if data is not None:
            raise UserError("Clients bring their own data: leave data= out.")
        clients = list(config)
        config = own_config(clients, method, settings)
        scenario = own_run_scenario(clients, config)
    out = Path(out or default_directory(config))
    if isinstance(trackers, str):
        raise UserError(f"trackers must be a list: write trackers=['{trackers}'].")
    with ExitStack() as stack:
        watching = [*observers, *(stack.enter_context(make_tracker(name, out)) for name in trackers)]
        watching += observers_of(callbacks, RunDirectory(out))  # last, because they may interrupt the run
        if is_interactive() and not observers if progress is None else progress:
            shown = ProgressObserver(Console(), method_title(config.method), seldom=_SELDOM)
            watching.append(stack.enter_context(shown))
        directory = run_federation(
            config,
            out,
            data=Path(data) if data else None,
            scenario=scenario,
            resume=resume,
            observers=watching,
            device=device,
            factory=None if isinstance(model, str) else model,
            brought=brought,
        )
    factory = None if isinstance(model, str) else model
    return Run(directory.path, scenario, Path(data) if data else None, factory, brought)


def is_interactive() -> bool:
    """Return whether this process runs in a terminal or in a notebook."""
    return sys.stdout.isatty() or "ipykernel" in sys.modules


def default_directory(config: Config) -> Path:
    """Return the default directory of a run: runs/PRESET/METHOD-seedN, of a control METHOD-control-seedN."""
    name = f"{config.method}-{CONTROL}" if config.control else config.method
    return Path("runs") / (config.preset or config.dataset) / f"{name}-seed{config.seed}"


def comparison_directory(preset: str) -> Path:
    """Return the default directory of a comparison: runs/PRESET-comparison."""
    return Path("runs") / f"{Path(preset).stem}-comparison"


def default_seeds(preset: str) -> list[int]:
    """Return the seeds of a comparison: that of the preset or file, and the two after it."""
    first = _table(preset).get("seed", Config.seed)
    return [first, first + 1, first + 2]


def compare(
    preset: str,
    /,
    methods: Sequence[str],
    seeds: Sequence[int] | None = None,
    out: Path | str | None = None,
    *,
    data: Path | str | None = None,
    resume: bool = False,
    watch: Callable[[Sequence[Config]], AbstractContextManager[Observer]] | None = None,
    device: str = "auto",
    control: bool = True,
    jobs: int = 1,
    finished: Callable[[Config], None] = lambda config: None,
    **settings: Any,
) -> list[Comparison]:
    """Run several methods with several seeds, and write comparison.json.

    Args:
        preset: the name of a preset, or a TOML file.
        methods: names of methods. An entry may have settings of its own, as in ``"factorized-fl:tau=0.3"``.
        seeds: the seeds of each method; by default the seed of the preset or file and the next two.
        out: the folder of all runs; by default runs/PRESET-comparison.
        data: the folder of the preset's dataset.
        resume: continue an interrupted comparison in `out`.
        watch: returns one observer for all runs, given their configurations in order.
        device: "cpu", "cuda", "cuda:1" or "auto".
        control: also run each method's control: the same run in which every client aggregates with itself alone.
            Methods that differ only in what they aggregate have one control.
        jobs: runs at a time, each in a process of its own, within the memory there is; `watch` then has no effect. A
            script that compares with jobs above 1 needs ``if __name__ == "__main__":``.
        finished: called with the configuration of each run that ends, with jobs above 1.
        settings: options of all runs; one for a single method is written ``**{"factorized-fl.tau": 0.3}``.

    Returns:
        One row for each method.

    Raises:
        UserError: if a setting cannot be used, or `out` holds another comparison.
    """
    seeds = default_seeds(preset) if seeds is None else seeds
    if isinstance(methods, str) or isinstance(seeds, int):
        raise UserError("methods and seeds must be lists: write methods=['fedavg'], seeds=[1].")
    if not methods or not seeds:
        raise UserError("A comparison needs at least one method and one seed.")
    if "seed" in settings:
        raise UserError("A comparison takes several seeds: `ffl compare PRESET --seeds 1,2,3`.")
    entries = [parse_entry(text) for text in methods]
    methods = [entry.name for entry in entries]
    for named in (methods, seeds, [run_folder(method, "") for method in methods]):
        if again := [name for name in named if list(named).count(name) > 1]:
            raise UserError(f"{again[0]} is named twice: name it once.")
    check_settings(settings, entries)
    configs = {
        (entry.name, seed): configure(preset, entry.method, **entry.settings(settings), seed=seed)
        for entry in entries
        for seed in seeds
    }
    check_configs(configs)
    root = Path(out) if out else comparison_directory(preset)
    if not resume and (root / COMPARISON).exists():
        raise UserError(f"'{root}' already holds a comparison: add --resume to continue it, or choose another --out.")
    refuse_losing(root / COMPARISON, methods, seeds)
    of_seed: dict[int, RunDirectory] = {}
    plan = plan_runs(configs, control)
    refuse_unusable([planned.config for planned in plan], Path(data) if data else None)
    done: dict[str, RunFiles] = {}
    if jobs != 1:
        work = [(planned.config, root / planned.folder) for planned in plan]
        for config in run_configs(work, jobs, Path(data) if data else None, resume, device):
            finished(config)
        data, resume, watch = None, True, None
    with watch([planned.config for planned in plan]) if watch else nullcontext() as observer:
        observers = [observer] if observer else []
        for planned in plan:
            out = root / planned.folder
            directory = run(
                *(planned.config, out), data=data, resume=resume, observers=observers, progress=False, device=device
            )
            same = of_seed.setdefault(planned.config.seed, directory)
            if different_images(same.clients(), directory.clients()):
                raise UserError(
                    f"'{same.path}' and '{directory.path}' have different images, so they cannot be compared: "
                    "give the same --data, or choose another --out."
                )
            done[planned.folder] = read_run(directory.path, strict=True)
    runs, controls = (
        {
            method: [done[planned.folder] for planned in plan for name in getattr(planned, part) if name == method]
            for method in methods
        }
        for part in ("entries", "controls")
    )
    rows = compare_methods(runs, controls)
    write_atomically(root / COMPARISON, comparison_json(rows))
    return rows


def report(
    runs: Path | str | Sequence[Path | str], out: Path | str | None = None, baseline: Path | str | None = None
) -> Path:
    """Write the page of runs.

    Args:
        runs: a run directory, a folder of runs, or a list of them.
        out: the file to write; by default report.html in the run or folder.
        baseline: a Stand-Alone run of the same clients to compare with.

    Returns:
        The path of the page.

    Raises:
        UserError: if there is no run, or runs cannot be shown together.
    """
    paths = [Path(runs)] if isinstance(runs, Path | str) else [Path(run) for run in runs]
    return write_report(paths, Path(out) if out else None, Path(baseline) if baseline else None)


def export(
    run: Path | str | Run,
    client: int = 0,
    out: Path | None = None,
    *,
    data: Path | None = None,
    alone: Path | None = None,
    control: bool = False,
) -> Exported:
    """Export a client's model as plain PyTorch weights and ONNX, with a model card.

    Args:
        run: a run, a run directory, or a site's kit.
        client: the client's number, from 1; a kit has one client.
        out: the folder to write; by default model/client-N in the run directory, or model in the kit.
        data: the folder of the dataset, if it is not where the run found it.
        alone: a Stand-Alone run that the model card compares with.
        control: of a kit, export the model that the site trained without the other sites.

    Returns:
        The exported model and its files.

    Raises:
        UserError: if the run has no such client, or the model cannot be exported.
    """
    if isinstance(run, Run):
        return export_run(
            *(run.path, client, out), alone=alone, scenario=run.scenario, factory=run.factory, brought=run.brought
        )
    run = Path(run)
    if not (run / FEDERATION).is_file():
        return export_run(run, client, out, data=data, alone=alone)
    kit = read_kit(run)
    if kit.is_coordinator:
        raise UserError(f"'{run}' is the coordinator's kit, which has no model: export at a site.")
    if client:
        raise UserError(f"'{run}' is the kit of one site, with one model: leave --client out.")
    data, columns = chosen_data(kit, data)
    if control:
        scenario = site_scenario(kit, data, columns)
        return export_control(kit, scenario, out or kit.path / "model-control", columns.window)
    return export_now(kit, data, out, columns)
