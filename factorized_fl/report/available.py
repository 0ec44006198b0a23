"""What a user can choose from, as tables: presets, listed without PyTorch, and methods with their options."""

import dataclasses

from rich.table import Table

from factorized_fl.core.options import limits_of
from factorized_fl.presets import PRESETS, preset_values


def presets_table() -> Table:
    """Return the presets with the settings in which they differ."""
    table = Table("preset", "dataset", "partition", "labels", "clients", "rounds x epochs", "model")
    for name in PRESETS:
        values = preset_values(name)
        partition = values["partition"]
        table.add_row(
            name,
            values["dataset"],
            partition if partition == "iid" else f"{partition}({values['alpha']:g})",
            "permuted" if values["permuted"] else "agree",
            str(values["clients"]),
            f"{values['rounds']} x {values['epochs']}",
            values["model"],
        )
    return table


def methods_table() -> Table:
    """Return the four choices of every method, and its communication cost in the paper's setting."""
    from factorized_fl.methods import METHODS
    from factorized_fl.report.costs import CLIENTS, ROUNDS, method_costs

    table = Table(
        *("method", "parametrisation", "local step", "shared", "aggregation"),
        title=f"Cost of a whole run in GB: ResNet-9, {CLIENTS} clients, {ROUNDS} rounds, labels agree, dense mu",
        caption="A, B: the paper's formula without and with the first download. serialised: the bytes of our messages.",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("A", "B", "published", "serialised"):
        table.add_column(heading, justify="right")
    for name, cost in method_costs().items():
        published = "-" if cost.published is None else f"{cost.published:g}"
        costs = (f"{cost.formula_a:.3f}", f"{cost.formula_b:.3f}", published, f"{cost.serialised:.3f}")
        table.add_row(name, *METHODS[name].card.row, *costs)
    return table


def option_lines() -> list[str]:
    """Return a line for every option of every method: its default and its description."""
    from factorized_fl.methods import METHODS

    lines = []
    for name, method in METHODS.items():
        for field in dataclasses.fields(method):
            limits = limits_of(field)
            lines.append(f"{name}: {field.name} = {field.default}" + (f"  ({limits.description})" if limits else ""))
    return lines
