"""Commands that list what is available: presets, methods, options."""

from typing import Annotated

import typer

from factorized_fl.cli.common import AsJson, console, print_json
from factorized_fl.cli.completion import methods_like


def presets_command(as_json: AsJson = False) -> None:
    """List the presets."""
    from factorized_fl.report.available import preset_records, presets_list

    if as_json:
        print_json(preset_records())
    else:
        console.print(presets_list())


def methods_command(
    costs: Annotated[
        bool,
        typer.Option("--costs", help="What each method trains and shares, and its traffic in the paper's setting."),
    ] = False,
    options: Annotated[bool, typer.Option("--options", help="Also list the options of each method.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the methods, each with a description in one sentence."""
    from factorized_fl.report.available import costs_table, method_option_lines, method_records, methods_list

    if as_json:
        print_json(method_records(costs, options))
        return
    console.print(costs_table() if costs else methods_list())
    for line in method_option_lines() if options else []:
        console.print(line, highlight=False, soft_wrap=True)


def options_command(
    method: Annotated[
        str | None,
        typer.Argument(metavar="METHOD", help="Also the options of this method.", autocompletion=methods_like),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every option of a run, and of a method: default, meaning, limits. Use: --set NAME=VALUE."""
    from factorized_fl.report.available import method_options, options_list, profile_sentence, run_options

    of_run, of_method = run_options(), method_options(method) if method else []
    if as_json:
        print_json({"run": of_run, "method": of_method})
        return
    console.print("Options of every run:")
    console.print(options_list(of_run))
    if method:
        console.print(f"\nOptions of {method}:" if of_method else f"\n{method} has no options of its own.")
        console.print(options_list(of_method), end="")
    else:
        console.print("\nOptions of a method: ffl options METHOD", highlight=False)
    console.print(f"\n{profile_sentence(method or '')}", highlight=False)
