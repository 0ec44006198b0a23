"""Presets, methods and options to choose from, as records and as lists for a terminal.

Presets and the options of a run are listed without PyTorch.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from factorized_fl.config import Config
from factorized_fl.core.options import Limits, limits_of
from factorized_fl.core.toml_text import to_toml_value
from factorized_fl.presets import PRESETS, preset_values
from factorized_fl.profiles import DEFAULT_PROFILE, profile_settings
from factorized_fl.report.listing import DescribedNames, NamedTable
from factorized_fl.results.schema import Record


def preset_records() -> list[Record]:
    """Return every preset with the values of all options of a run, and its options of methods."""
    return [
        {"name": name, **preset_values(name), "methods": PRESETS[name]["methods"], "preset": name} for name in PRESETS
    ]


def presets_list() -> DescribedNames:
    """Return the presets with the settings in which they differ."""
    return DescribedNames((name, _preset_words(preset_values(name), PRESETS[name]["methods"])) for name in PRESETS)


def _preset_words(values: Record, methods: Mapping[str, Record]) -> str:
    partition = values["partition"]
    split = partition if partition == "iid" else f"{partition}({values['alpha']:g})"
    labels = "labels permuted" if values["permuted"] else "labels agree"
    shares = f" ({', '.join(map(str, values['clients_per_domain']))})" if values["clients_per_domain"] else ""
    images = f" of {values['images_per_client']} images" if values["images_per_client"] else ""
    clients = f"{values['clients']} clients{shares}{images}"
    rounds = f"{values['rounds']} rounds of {values['epochs']} epochs"
    released = any(options.get("layout") == "released" for options in methods.values())
    end = ", options as in the authors' code" if released else ""
    return f"{values['dataset']}, {split}, {labels}, {clients}, {rounds}, {values['model']}{end}"


def method_records(costs: bool = False, options: bool = False) -> list[Record]:
    """Return every method with its sentence; on request its costs in the paper's setting, and its options."""
    from factorized_fl.methods import METHODS, sentence_of

    records: list[Record] = [
        {"name": name, "title": method.card.title, "sentence": sentence_of(method)} for name, method in METHODS.items()
    ]
    if costs:
        from factorized_fl.report.costs import method_costs

        for record, cost in zip(records, method_costs().values(), strict=True):
            row = METHODS[record["name"]].card.row
            record["choices"] = dict(zip(("parametrisation", "local step", "shared", "aggregation"), row, strict=True))
            record["gigabytes"] = dataclasses.asdict(cost)
    if options:
        for record in records:
            record["options"] = option_records(METHODS[record["name"]])
    return records


def methods_list() -> DescribedNames:
    """Return every method's name and its sentence."""
    return DescribedNames((record["name"], record["sentence"]) for record in method_records())


def costs_table() -> NamedTable:
    """Return the four choices of every method, and its communication cost in the paper's setting."""
    from factorized_fl.report.costs import CLIENTS, ROUNDS

    choices = ("parametrisation", "local step", "shared", "aggregation")
    table = NamedTable(
        ("method", *choices, "A", "B", "published", "serialised"),
        title=f"Choices of every method, and its cost in GB (ResNet-9, {CLIENTS} clients, {ROUNDS} rounds)",
        caption="Labels agree, mu is dense. A, B: the paper's formula without and with the first download. "
        "serialised: the bytes of our messages.",
        left=choices,
    )
    for record in method_records(costs=True):
        cost = record["gigabytes"]
        published = "-" if cost["published"] is None else f"{cost['published']:g}"
        numbers = (f"{cost['formula_a']:.3f}", f"{cost['formula_b']:.3f}", published, f"{cost['serialised']:.3f}")
        table.add_row(record["name"], *record["choices"].values(), *numbers)
    return table


def method_option_lines() -> list[str]:
    """Return a line for every option of every method: its default and its description."""
    return [
        f"{record['name']}: {option['name']} = {option['default']}"
        + (f"  ({option['meaning']})" if option["meaning"] else "")
        for record in method_records(options=True)
        for option in record["options"]
    ]


# -- options


def run_options() -> list[Record]:
    """Return every option of a run; `preset` is none, since it is an argument of the commands."""
    return [record for record in option_records(Config) if record["name"] not in ("preset", "options")]


def method_options(name: str) -> list[Record]:
    """Return every option of a method; raises a UserError for an unknown method."""
    from factorized_fl.methods import find_method

    return option_records(find_method(name))


def option_records(options: Any) -> list[Record]:
    """Return name, default, type, meaning and limits of every option of a dataclass."""
    return [
        {
            "name": field.name,
            "default": list(field.default) if isinstance(field.default, tuple) else field.default,
            "type": _type_name(field.default),
            "meaning": limits.description if limits else "",
            "limits": _limits_words(limits) if limits else "",
            **({"choices": list(limits.choices)} if limits and limits.choices else {}),
        }
        for field in dataclasses.fields(options)
        for limits in (limits_of(field),)
        if field.default is not dataclasses.MISSING
    ]


def _type_name(default: Any) -> str:
    """Return the type of an option's value in a word; bool comes first, since it is a kind of int."""
    words = {bool: "true or false", int: "whole number", float: "number", str: "word", tuple: "list"}
    return next((word for kind, word in words.items() if isinstance(default, kind)), type(default).__name__)


def _limits_words(limits: Limits) -> str:
    """Return the values that an option accepts in words; empty if its type alone limits them."""
    if limits.choices:
        return f"one of {', '.join(limits.choices)}"
    parts = []
    if limits.above is not None:
        parts.append(f"above {limits.above:g}")
    if limits.low is not None:
        parts.append(f"at least {limits.low:g}")
    if limits.high is not None:
        parts.append(f"at most {limits.high:g}")
    return ", ".join(parts)


def profile_sentence(method: str = "") -> str:
    """Return in a sentence what the profile that a run has by default sets in place of the defaults."""
    own = profile_settings(DEFAULT_PROFILE, method)
    settings = ", ".join(f"{name} = {to_toml_value(value)}" for name, value in own.items())
    of = f" for {method}" if method else ""
    return (
        f'Unless the preset or --set names another profile, runs have profile = "{DEFAULT_PROFILE}", '
        f"which sets{of}: {settings}."
    )


def options_list(records: list[Record]) -> DescribedNames:
    """Return options with their defaults, their meanings and the values that they accept."""
    return DescribedNames(
        (
            f"{record['name']} = {to_toml_value(record['default'])}",
            record["meaning"] + (f" ({record['limits']})" if record["limits"] else ""),
        )
        for record in records
    )
