"""Commands that train: run, compare, demo, pilot."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from factorized_fl.cli.common import (
    FOLLOWS,
    AsJson,
    Data,
    Device,
    Out,
    Preset,
    Quiet,
    Resume,
    Setting,
    console,
    notes,
    parse_numbers,
    parse_settings,
    print_json,
    resumable,
)
from factorized_fl.cli.completion import entries_like, methods_like
from factorized_fl.cli.report import Watch, end_with_page, page_while_running
from factorized_fl.presets import DEMO_METHODS

if TYPE_CHECKING:
    from factorized_fl.config import Config
    from factorized_fl.report.progress import ComparisonObserver
    from factorized_fl.results.comparison import Comparison
    from factorized_fl.simulate.run import Observer

_DEMO = (
    "Twelve clients hold handwritten digits, drawn shapes or textures, and each numbers its classes in its own "
    "order. No client shares images or labels. Does training together help? Each method runs with three seeds, "
    "beside its control, in which every client aggregates with itself alone.\n"
)


def _comparison_progress(to: Console) -> "Callable[[Sequence[Config]], ComparisonObserver]":
    from factorized_fl.report.progress import ComparisonObserver

    return partial(ComparisonObserver, to)


def _print_finished(to: Console, config: "Config") -> None:
    from factorized_fl.results.words import method_title

    own = ", control" if config.control else ""
    to.print(f"{method_title(config.method)}{own}, seed {config.seed}: done", highlight=False)


def _print_comparison(rows: "list[Comparison]", title: str) -> None:
    from factorized_fl.report.tables import comparison_table, verdict_lines

    console.print(comparison_table(rows, title))
    console.print()
    for line in verdict_lines(rows):
        console.print(line, highlight=False)


@resumable()
def run_command(
    preset: Preset,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="See `ffl methods`.", autocompletion=methods_like)
    ] = None,
    settings: Setting = None,
    out: Out = None,
    data: Data = None,
    resume: Resume = False,
    device: Device = "auto",
    quiet: Quiet = False,
    watch: Watch = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also log for TensorBoard.")] = False,
    processes: Annotated[
        int,
        typer.Option("--processes", help="Number of processes of this machine; results do not depend on it."),
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Run one federation."""
    if processes != 1 and "RANK" not in os.environ:
        from factorized_fl.simulate.launch import relaunch

        raise typer.Exit(relaunch(processes))
    from factorized_fl import api
    from factorized_fl.report.documents import run_document
    from factorized_fl.report.progress import ProgressObserver
    from factorized_fl.report.tables import result_table
    from factorized_fl.report.tensorboard import TensorBoardObserver
    from factorized_fl.results.frames import client_names
    from factorized_fl.results.schema import diverged
    from factorized_fl.results.words import divergence_line, method_title

    config = api.configure(preset, method, **parse_settings(settings))
    out, to = out or api.default_directory(config), notes if as_json else console
    observers: list[Observer] = []
    with ExitStack() as stack:
        stack.enter_context(page_while_running(out, watch, to))
        if tensorboard:
            observers.append(stack.enter_context(TensorBoardObserver(out)))
        if not quiet:
            progress = ProgressObserver(to, method_title(config.method), details=True)
            observers.append(stack.enter_context(progress))
        directory = api.run(config, out, data=data, resume=resume, device=device, observers=observers, progress=False)
    if FOLLOWS:
        return
    if as_json:
        print_json(run_document(directory, end_with_page(directory.path, to)))
        return
    summary = directory.summary()
    assert summary is not None
    console.print(result_table(summary, client_names(directory)))
    if lost := [client["client"] for client in summary["clients"] if diverged(client)]:
        console.print(divergence_line(lost), highlight=False)
    console.print(f"Run directory: {directory.path}", highlight=False)
    end_with_page(directory.path)


@resumable()
def compare_command(
    preset: Preset,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            help="Names, separated by commas; default: all. A variant of a method: fedavg:lr=0.1.",
            autocompletion=entries_like,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", help="Whole numbers like 1,2,5 or 1-3; default: the first three."),
    ] = None,
    settings: Setting = None,
    out: Out = None,
    data: Data = None,
    resume: Resume = False,
    device: Device = "auto",
    quiet: Quiet = False,
    watch: Watch = False,
    control: Annotated[
        bool, typer.Option(help="Also run each method's control: every client aggregates with itself alone.")
    ] = True,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="Make so many runs at once, each in a process, as memory allows.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Run several methods with several seeds and compare them. --set METHOD.NAME=VALUE is for one method."""
    from factorized_fl import api
    from factorized_fl.methods import METHODS
    from factorized_fl.report.documents import comparison_document_of
    from factorized_fl.results.entries import split_entries

    numbers = None if seeds is None else parse_numbers("--seeds", seeds)
    out, to = out or api.comparison_directory(preset), notes if as_json else console
    with page_while_running(out, watch, to):
        rows = api.compare(
            preset,
            list(METHODS) if methods is None else split_entries(methods),
            numbers,
            out,
            data=data,
            resume=resume,
            device=device,
            watch=None if quiet else _comparison_progress(to),
            control=control,
            jobs=jobs,
            finished=(lambda config: None) if quiet else partial(_print_finished, to),
            **parse_settings(settings),
        )
    if as_json:
        print_json(comparison_document_of(rows, out, end_with_page(out, to)))
        return
    count = len(api.default_seeds(preset) if numbers is None else numbers)
    _print_comparison(rows, f"{preset}, {count} seed{'s' if count > 1 else ''}")
    end_with_page(out)


@resumable()
def demo_command(
    out: Annotated[Path, typer.Option("--out", help="Directory of the comparison.")] = Path("runs/demo"),
    settings: Setting = None,
    resume: Resume = False,
    watch: Watch = False,
) -> None:
    """Compare four methods with three seeds on data that comes with the package: no download, about a minute."""
    from factorized_fl import api

    progress, chosen = _comparison_progress(console), parse_settings(settings)

    def begin(configs: "Sequence[Config]") -> "ComparisonObserver":
        console.print(_DEMO)  # after the settings were checked
        return progress(configs)

    with page_while_running(out, watch):
        rows = api.compare("demo", DEMO_METHODS, None, out, resume=resume, watch=begin, **chosen)
    _print_comparison(rows, "Accuracy of each client's own model on its own test images")
    end_with_page(out)


@resumable()
def pilot_command(
    preset: Preset,
    settings: Setting = None,
    out: Out = None,
    data: Data = None,
    resume: Resume = False,
    device: Device = "auto",
) -> None:
    """Find thresholds for Clustered-FL from the norms of the updates in a run without splits."""
    from factorized_fl import pilots
    from factorized_fl.report.progress import ProgressObserver

    with ProgressObserver(console, "Clustered-FL, pilot") as observer:
        pilot = pilots.pilot(
            preset, out, data=data, resume=resume, device=device, observers=[observer], **parse_settings(settings)
        )
    for round_number, mean, longest in pilot.norms:
        console.print(f"round {round_number}: mean update {mean:.4g}, longest update {longest:.4g}", highlight=False)
    console.print(f"Use: --set rule=norms --set eps1={pilot.eps1:.4g} --set eps2={pilot.eps2:.4g}", highlight=False)
