"""The command line: it parses arguments, calls the package and prints. One file for each family of commands.

Commands import the package inside their functions, so that help, version and presets appear without loading PyTorch.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from factorized_fl import __version__
from factorized_fl.cli import audit, bench, classes, data, lists, model, network, new, report, runs
from factorized_fl.cli.common import Interrupted, console, notes, show_warnings_as_notes
from factorized_fl.cli.settings import SettingsCommand
from factorized_fl.core.errors import UserError, flags_shown, is_lack_of_memory


class _Commands(TyperGroup):
    """Commands. The error for an unknown name lists the groups that have a command of that name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve a command as usual; raises a UserError for a name that only a group of commands has."""
        if args and args[0] not in self.commands:
            groups = [name for name, group in self.commands.items() if args[0] in getattr(group, "commands", ())]
            if groups:
                forms = " or ".join(f"`ffl {name} {args[0]}`" for name in groups)
                raise UserError(f"There is no command '{args[0]}': write {forms}.")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    help="Agnostic personalised federated learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("run", cls=SettingsCommand)(runs.run_command)
app.command("compare", cls=SettingsCommand)(runs.compare_command)
app.command("demo", cls=SettingsCommand)(runs.demo_command)
app.command("bench")(bench.bench_command)
app.command("new")(new.new_command)
app.command("presets")(lists.presets_command)
app.command("methods")(lists.methods_command)
app.command("options")(lists.options_command)
app.command("pilot", cls=SettingsCommand)(runs.pilot_command)
app.command("report")(report.report_command)
app.command("classes")(classes.classes_command)
app.command("audit")(audit.audit_command)
app.command("watch")(report.watch_command)
app.add_typer(data.app, name="data")
app.command("export")(model.export_command)
app.command("predict")(model.predict_command)
app.command("evaluate")(model.evaluate_command)
app.command("serve")(network.serve)
app.command("join")(network.join)
app.add_typer(network.app, name="federation")


@app.callback(invoke_without_command=True)
def common_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
    load: Annotated[
        list[Path] | None,
        typer.Option("--load", metavar="FILE.py", help="Load a file with your own methods, networks or data."),
    ] = None,
) -> None:
    """Agnostic personalised federated learning."""
    if version:
        console.print(__version__)
        raise typer.Exit
    if load:
        from factorized_fl.methods.loading import load_methods

        for file in load:
            load_methods(file)


def main(application: typer.Typer = app) -> None:
    """Run the command of sys.argv; a UserError becomes one sentence and exit code 2."""
    show_warnings_as_notes()
    with flags_shown():
        _run(application)


def _run(application: typer.Typer) -> None:
    try:
        application()
    except UserError as error:
        _fail(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        _fail(f"{error.strerror}: '{error.filename}'. Change its permissions, or choose another path.")
    except (MemoryError, RuntimeError) as error:
        if not is_lack_of_memory(error):
            raise
        _fail("Out of memory: free some, or use a smaller width, batch_size or image_size.")
    except Interrupted:
        notes.print("Interrupted: nothing is lost, continue with --resume.")
        sys.exit(130)


def _fail(sentence: str) -> None:
    # A terminal gets lines that end between words, a log one line.
    notes.print(f"Error: {sentence}", style="red", highlight=False, soft_wrap=not notes.is_terminal)
    sys.exit(2)
