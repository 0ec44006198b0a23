"""The command line. It parses, calls and prints; all logic lives elsewhere."""

import dataclasses
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from factorized_fl import __version__, api
from factorized_fl.config import Config, parse_setting
from factorized_fl.data.fetch import fetch as fetch_data
from factorized_fl.errors import UserError
from factorized_fl.federation.build import Federation
from factorized_fl.methods import METHODS
from factorized_fl.presets import PRESETS
from factorized_fl.report.costs import CLIENTS, ROUNDS, method_costs
from factorized_fl.report.progress import ProgressObserver
from factorized_fl.report.tables import (
    Comparison,
    comparison_table,
    model_line,
    result_table,
    scenario_table,
    verdict_lines,
)

app = typer.Typer(
    help="Agnostic personalised federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Fetch and look at data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
console = Console(width=None if sys.stdout.isatty() else 180)  # tables in a log or a pipe are not squeezed
notes = Console(stderr=True)

Data = Annotated[Path | None, typer.Option("--data", help="Folder that holds the data sets.")]
Out = Annotated[Path | None, typer.Option("--out", help="Directory of the run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that was interrupted.")]
Setting = Annotated[list[str] | None, typer.Option("--set", help="key=value; may be given several times.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, results only.")]


class Interrupted(Exception):
    """Ctrl-C, out of reach of the parser's own handling of it."""


@contextmanager
def resumable() -> Iterator[None]:
    """For work that --resume can go on with."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None


class RunObserver(ProgressObserver):
    """Progress, with the scenario and the model shown before the first round."""

    def started(self, federation: Federation, done: int) -> None:
        """Show what is about to happen."""
        self.console.print(scenario_table(federation.scenario))
        self.console.print(model_line(federation), highlight=False)
        super().started(federation, done)


def _settings(texts: list[str] | None) -> dict[str, Any]:
    return dict(parse_setting(text) for text in texts or [])


def _watch(config: Config) -> ProgressObserver:
    return ProgressObserver(console, f"{METHODS[config.method].title}, seed {config.seed}")


def _print_comparison(rows: list[Comparison], title: str) -> None:
    console.print(comparison_table(rows, title))
    for line in verdict_lines(rows):
        console.print(line, highlight=False)


@app.command()
@resumable()
def run(
    preset: Annotated[str, typer.Argument(metavar="PRESET|file.toml", help="See `ffl presets`.")],
    method: Annotated[str | None, typer.Option("--method", "-m", help="See `ffl methods`.")] = None,
    settings: Setting = None,
    out: Out = None,
    data: Data = None,
    resume: Resume = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Run one federation."""
    config = api.configure(preset, method, **_settings(settings))
    out = out or api.default_directory(config)
    if quiet:
        directory = api.run(config, out, data=data, resume=resume, device=device)
    else:
        with RunObserver(console, METHODS[config.method].title) as observer:
            directory = api.run(config, out, data=data, resume=resume, device=device, observers=[observer])
    summary = directory.summary()
    assert summary is not None
    console.print(result_table(summary))
    console.print(f"Run directory: {directory.path}", highlight=False)


@app.command()
@resumable()
def compare(
    preset: Annotated[str, typer.Argument(metavar="PRESET|file.toml", help="See `ffl presets`.")],
    methods: Annotated[str, typer.Option("--methods", help="Names, separated by commas.")] = ",".join(METHODS),
    seeds: Annotated[str, typer.Option("--seeds", help="Whole numbers, separated by commas.")] = "1",
    settings: Setting = None,
    out: Out = None,
    data: Data = None,
    resume: Resume = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Run several methods over several seeds and compare them."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise UserError(f"--seeds '{seeds}' must be whole numbers separated by commas, for example 1,2,3.") from None
    rows = api.compare(
        preset,
        names,
        numbers,
        out,
        data=data,
        resume=resume,
        device=device,
        watch=None if quiet else _watch,
        **_settings(settings),
    )
    _print_comparison(rows, f"{preset}, {len(numbers)} seed{'s' if len(numbers) > 1 else ''}")


@app.command()
@resumable()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Directory of the comparison.")] = Path("runs/demo"),
    settings: Setting = None,
    resume: Resume = False,
) -> None:
    """Watch a personalised federation train on embedded data: four methods compared, no download."""
    console.print(
        "Twelve clients hold handwritten digits, drawn shapes or textures; each numbers its classes in its own way.\n"
        "Nobody shares images or labels. Does training together help?\n"
    )
    rows = api.compare(
        "demo",
        ["stand-alone", "fedavg", "factorized-fl", "factorized-fl-beta"],
        [1],
        out,
        resume=resume,
        watch=_watch,
        **_settings(settings),
    )
    _print_comparison(rows, "Accuracy of every client's own model on its own test images")


@app.command()
def presets() -> None:
    """List the presets."""
    table = Table()
    for heading in ("preset", "data set", "partition", "labels", "clients", "rounds x epochs", "model"):
        table.add_column(heading)
    for name in PRESETS:
        config = api.configure(name)
        table.add_row(
            name,
            config.dataset,
            config.partition if config.partition == "iid" else f"{config.partition}({config.alpha:g})",
            "permuted" if config.permuted else "agree",
            str(config.clients),
            f"{config.rounds} x {config.epochs}",
            config.model,
        )
    console.print(table)


@app.command()
def methods(
    options: Annotated[bool, typer.Option("--options", help="List the options of each method, too.")] = False,
) -> None:
    """List the methods: four choices each, and what they cost in the paper's setting."""
    table = Table(
        title=f"Cost in GB of a whole run: ResNet-9, {CLIENTS} clients, {ROUNDS} rounds, labels agree, mu dense",
        caption="A, B: the paper's formula without and with the first download. serialised: what we would really send.",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("method", "parametrisation", "local step", "what travels", "mixing"):
        table.add_column(heading)
    for heading in ("A", "B", "published", "serialised"):
        table.add_column(heading, justify="right")
    for name, cost in method_costs().items():
        published = "-" if cost.published is None else f"{cost.published:g}"
        costs = (f"{cost.formula_a:.3f}", f"{cost.formula_b:.3f}", published, f"{cost.serialised:.3f}")
        table.add_row(name, *METHODS[name].row, *costs)
    console.print(table)
    if options:
        for name, method in METHODS.items():
            for field in dataclasses.fields(method):
                console.print(f"{name}: {field.name} = {field.default}  ({field.metadata['limits'].help})")


@app.command()
@resumable()
def pilot(
    preset: Annotated[str, typer.Argument(metavar="PRESET|file.toml", help="See `ffl presets`.")],
    settings: Setting = None,
    out: Out = None,
    data: Data = None,
    resume: Resume = False,
    device: Device = "auto",
) -> None:
    """Find thresholds for Clustered-FL: watch its two norms while nothing splits."""
    with ProgressObserver(console, "Clustered-FL, pilot") as observer:
        found = api.pilot(
            preset, out, data=data, resume=resume, device=device, observers=[observer], **_settings(settings)
        )
    for round, mean, longest in found.norms:
        console.print(f"round {round}: mean update {mean:.4g}, longest update {longest:.4g}", highlight=False)
    console.print(f"Use: --set eps1={found.eps1:.4g} --set eps2={found.eps2:.4g}", highlight=False)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100, svhn or mnist.")],
    dest: Annotated[Path | None, typer.Option("--dest", help="Where to; default: the cache folder.")] = None,
) -> None:
    """Download a data set from the Hugging Face hub, check it, keep it."""
    console.print(f"{name} is in {fetch_data(name, dest)}", highlight=False)


@app.callback(invoke_without_command=True)
def version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Agnostic personalised federated learning."""
    if version:
        console.print(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point: user errors become one sentence and exit code 2."""
    warnings.showwarning = lambda message, *_: notes.print(f"Note: {message}", highlight=False)
    try:
        app()
    except UserError as error:
        notes.print(f"Error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    except Interrupted:
        notes.print("Interrupted: nothing is lost, continue with --resume.")
        sys.exit(130)


if __name__ == "__main__":
    main()
