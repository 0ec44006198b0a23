"""Commands that train: run, compare, demo, pilot."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from factorized_fl import api
from factorized_fl.cli.common import (
    Data,
    Device,
    Out,
    Preset,
    Quiet,
    Resume,
    Setting,
    console,
    parse_numbers,
    parse_settings,
    parse_words,
    resumable,
)
from factorized_fl.cli.report import Watch, end_with_page, page_while_running
from factorized_fl.config import Config
from factorized_fl.methods import METHODS
from factorized_fl.report.progress import ProgressObserver
from factorized_fl.report.tables import (
    Comparison,
    comparison_table,
    model_line,
    result_table,
    scenario_table,
    verdict_lines,
)
from factorized_fl.report.tensorboard import TensorBoardObserver
from factorized_fl.results.verdict import diverged, divergence_line
from factorized_fl.simulate.build import Federation
from factorized_fl.simulate.run import Observer


class RunObserver(ProgressObserver):
    """Progress, with the scenario and the model shown before the first round."""

    def started(self, federation: Federation, done: int) -> None:
        """Show what is about to happen."""
        self.console.print(scenario_table(federation.scenario))
        self.console.print(model_line(federation), highlight=False)
        super().started(federation, done)


def _watch(config: Config) -> ProgressObserver:
    return ProgressObserver(console, f"{METHODS[config.method].card.title}, seed {config.seed}")


def _print_comparison(rows: list[Comparison], title: str) -> None:
    console.print(comparison_table(rows, title))
    for line in verdict_lines(rows):
        console.print(line, highlight=False)


@resumable()
def run(
    preset: Preset,
    method: Annotated[str | None, typer.Option("--method", "-m", help="See `ffl methods`.")] = None,
    settings: Setting = None,
    out: Out = None,
    data: Data = None,
    resume: Resume = False,
    device: Device = "auto",
    quiet: Quiet = False,
    watch: Watch = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also log for TensorBoard.")] = False,
) -> None:
    """Run one federation."""
    config = api.configure(preset, method, **parse_settings(settings))
    out = out or api.default_directory(config)
    observers: list[Observer] = []
    with ExitStack() as stack:
        stack.enter_context(page_while_running(out, watch))
        if tensorboard:
            observers.append(stack.enter_context(TensorBoardObserver(out)))
        if not quiet:
            observers.append(stack.enter_context(RunObserver(console, METHODS[config.method].card.title)))
        directory = api.run(config, out, data=data, resume=resume, device=device, observers=observers)
    summary = directory.summary()
    assert summary is not None
    console.print(result_table(summary))
    if lost := [client["client"] for client in summary["clients"] if diverged(client)]:
        console.print(divergence_line(lost), highlight=False)
    console.print(f"Run directory: {directory.path}", highlight=False)
    end_with_page(directory.path)


@resumable()
def compare(
    preset: Preset,
    methods: Annotated[str, typer.Option("--methods", help="Names, separated by commas.")] = ",".join(METHODS),
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Whole numbers, separated by commas; default: the configuration's.")
    ] = None,
    settings: Setting = None,
    out: Out = None,
    data: Data = None,
    resume: Resume = False,
    device: Device = "auto",
    quiet: Quiet = False,
    watch: Watch = False,
) -> None:
    """Run several methods over several seeds and compare them."""
    numbers = None if seeds is None else parse_numbers("--seeds", seeds)
    out = out or api.comparison_directory(preset)
    with page_while_running(out, watch):
        rows = api.compare(
            preset,
            parse_words(methods),
            numbers,
            out,
            data=data,
            resume=resume,
            device=device,
            watch=None if quiet else _watch,
            **parse_settings(settings),
        )
    count = 1 if numbers is None else len(numbers)
    _print_comparison(rows, f"{preset}, {count} seed{'s' if count > 1 else ''}")
    end_with_page(out)


@resumable()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Directory of the comparison.")] = Path("runs/demo"),
    settings: Setting = None,
    resume: Resume = False,
    watch: Watch = False,
) -> None:
    """Watch a personalised federation train on embedded data: five methods compared, no download."""
    console.print(
        "Twelve clients hold handwritten digits, drawn shapes or textures; each numbers its classes in its own way.\n"
        "Nobody shares images or labels. Does training together help?\n"
    )
    methods = ["stand-alone", "fedavg", "factorized-fl", "factorized-fl-beta", "factorized-peers"]
    with page_while_running(out, watch):
        rows = api.compare("demo", methods, [1], out, resume=resume, watch=_watch, **parse_settings(settings))
    _print_comparison(rows, "Accuracy of every client's own model on its own test images")
    end_with_page(out)


@resumable()
def pilot(
    preset: Preset,
    settings: Setting = None,
    out: Out = None,
    data: Data = None,
    resume: Resume = False,
    device: Device = "auto",
) -> None:
    """Find thresholds for Clustered-FL: watch its two norms while nothing splits."""
    with ProgressObserver(console, "Clustered-FL, pilot") as observer:
        found = api.pilot(
            preset, out, data=data, resume=resume, device=device, observers=[observer], **parse_settings(settings)
        )
    for round, mean, longest in found.norms:
        console.print(f"round {round}: mean update {mean:.4g}, longest update {longest:.4g}", highlight=False)
    console.print(f"Use: --set eps1={found.eps1:.4g} --set eps2={found.eps2:.4g}", highlight=False)
