"""Commands that list what there is: presets, methods."""

import dataclasses
from typing import Annotated

import typer
from rich.table import Table

from factorized_fl import api
from factorized_fl.cli.common import console
from factorized_fl.methods import METHODS
from factorized_fl.presets import PRESETS
from factorized_fl.report.costs import CLIENTS, ROUNDS, method_costs


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
        table.add_row(name, *METHODS[name].card.row, *costs)
    console.print(table)
    if options:
        for name, method in METHODS.items():
            for field in dataclasses.fields(method):
                help = f"  ({field.metadata['limits'].help})" if "limits" in field.metadata else ""
                console.print(f"{name}: {field.name} = {field.default}{help}")
