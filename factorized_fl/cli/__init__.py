"""The command line. It parses, calls and prints; all logic lives elsewhere. One file per family of commands."""

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from factorized_fl import __version__
from factorized_fl.cli import data, lists, model, network, report, runs
from factorized_fl.cli.common import Interrupted, console, notes
from factorized_fl.errors import UserError, is_lack_of_memory
from factorized_fl.methods.loading import load_methods

app = typer.Typer(
    help="Agnostic personalised federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (runs.run, runs.compare, runs.demo, lists.presets, lists.methods, runs.pilot):
    app.command()(command)
app.command()(report.report)
app.command()(report.watch)
app.add_typer(data.app, name="data")
app.command()(model.export)
app.command()(model.predict)
app.command()(network.serve)
app.command()(network.join)
app.add_typer(network.app, name="federation")


@app.callback(invoke_without_command=True)
def before(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
    load: Annotated[
        list[Path] | None,
        typer.Option("--load", metavar="FILE.py", help="Methods of your own; may be given several times."),
    ] = None,
) -> None:
    """Agnostic personalised federated learning."""
    if version:
        console.print(__version__)
        raise typer.Exit
    for file in load or []:
        load_methods(file)


def main(application: typer.Typer = app) -> None:
    """Entry point: user errors become one sentence and exit code 2."""
    warnings.showwarning = lambda message, *_: notes.print(f"Note: {message}", highlight=False, soft_wrap=True)
    try:
        application()
    except UserError as error:
        notes.print(f"Error: {error}", style="red", highlight=False, soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        if error.filename is None:
            raise
        why = f"{error.strerror}: '{error.filename}'"
        notes.print(f"Error: {why}: allow it, or choose another path.", style="red", highlight=False, soft_wrap=True)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not is_lack_of_memory(error):
            raise
        notes.print("Error: There is too little memory: free some, or take a smaller width, batch_size or image_size.")
        sys.exit(2)
    except Interrupted:
        notes.print("Interrupted: nothing is lost, continue with --resume.")
        sys.exit(130)
