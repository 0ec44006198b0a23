"""Commands that list what is available: presets, methods."""

from typing import Annotated

import typer
from rich.table import Table

from factorized_fl.cli.common import console
from factorized_fl.presets import PRESETS, preset_values


def presets_command() -> None:
    """List the presets."""
    table = Table()
    for heading in ("preset", "dataset", "partition", "labels", "clients", "rounds x epochs", "model"):
        table.add_column(heading)
    for name in PRESETS:
        values = preset_values(name)
        table.add_row(
            name,
            values["dataset"],
            values["partition"] if values["partition"] == "iid" else f"{values['partition']}({values['alpha']:g})",
            "permuted" if values["permuted"] else "agree",
            str(values["clients"]),
            f"{values['rounds']} x {values['epochs']}",
            values["model"],
        )
    console.print(table)


def methods_command(
    options: Annotated[bool, typer.Option("--options", help="Also list the options of each method.")] = False,
) -> None:
    """List the methods: their four choices, and their communication cost in the paper's setting."""
    import dataclasses

    from factorized_fl.core.options import limits_of
    from factorized_fl.methods import METHODS
    from factorized_fl.report.costs import CLIENTS, ROUNDS, method_costs

    table = Table(
        title=f"Cost of a whole run in GB: ResNet-9, {CLIENTS} clients, {ROUNDS} rounds, labels agree, dense mu",
        caption="A, B: the paper's formula without and with the first download. serialised: the bytes of our messages.",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("method", "parametrisation", "local step", "shared", "aggregation"):
        table.add_column(heading)
    for heading in ("A", "B", "published", "serialised"):
        table.add_column(heading, justify="right")
    for name, cost in method_costs().items():
        published = "-" if cost.published is None else f"{cost.published:g}"
        costs = (f"{cost.formula_a:.3f}", f"{cost.formula_b:.3f}", published, f"{cost.serialised:.3f}")
        table.add_row(name, *METHODS[name].card.row, *costs)
    console.print(table)
    if options:
        for name, method in METHODS.items():
            for field in dataclasses.fields(method):
                limits = limits_of(field)
                description = f"  ({limits.description})" if limits else ""
                console.print(f"{name}: {field.name} = {field.default}{description}")
