"""Commands that list what is available: presets, methods."""

from typing import Annotated

import typer

from factorized_fl.cli.common import console


def presets_command() -> None:
    """List the presets."""
    from factorized_fl.report.available import presets_table

    console.print(presets_table())


def methods_command(
    options: Annotated[bool, typer.Option("--options", help="Also list the options of each method.")] = False,
) -> None:
    """List the methods: their four choices, and their communication cost in the paper's setting."""
    from factorized_fl.report.available import methods_table, option_lines

    console.print(methods_table())
    for line in option_lines() if options else []:
        console.print(line)
