"""The tables of configuration files: [data] [model] [train] [federation] [method]. Earlier files are flat."""

from collections.abc import Mapping
from typing import Any

from factorized_fl.core.errors import UserError, unknown

SECTIONS: dict[str, tuple[str, ...]] = {
    "data": (
        *("dataset", "image_size", "channels", "inputs", "partition", "alpha", "permuted", "permutation_seed"),
        *("partition_seed", "clients", "clients_per_domain", "images_per_client", "test_images", "scrambled"),
        "train_share",
    ),
    "model": ("model", "width", "head_layers", "head_norm", "head_width"),
    "train": (
        *("epochs", "batch_size", "optimizer", "lr", "momentum", "weight_decay", "schedule", "clip_norm", "ema"),
        *("loss", "class_weights", "metrics", "augment", "precision", "repeatable"),
    ),
    "privacy": ("privacy_epsilon", "privacy_delta", "privacy_clip"),
    "federation": ("rounds", "fraction", "dropout", "score", "test_every", "control", "oracle", "min_peers", "seed"),
}
_NAMED = {"data": "dataset", "model": "model", "method": "method"}  # the option that `name` stands for in a table
_PREFIX = {"privacy": "privacy_"}  # prefix of the options of a table, which leaves it out
_FLAT = ("options", "methods")  # tables that a flat file has as well
_SECTION_OF = {option: section for section, options in SECTIONS.items() for option in options}


def is_nested(table: Mapping[str, Any]) -> bool:
    """Return whether a file's table has one of the sections."""
    return any(isinstance(table.get(section), Mapping) for section in (*SECTIONS, "method"))


def check_tables(table: Mapping[str, Any]) -> None:
    """Raise UserError for a table of a file with an unknown name."""
    known = (*SECTIONS, "method", *_FLAT)
    if strange := [name for name, value in table.items() if isinstance(value, Mapping) and name not in known]:
        raise unknown("table of a configuration file", strange[0], [name for name in known if name not in _FLAT])


def flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat table of options of a file with sections.

    Raise UserError for an option in another section than its own, or outside of all.
    """
    flat: dict[str, Any] = {}
    for section, values in table.items():
        if section not in (*SECTIONS, "method"):
            if section in _SECTION_OF:
                raise UserError(
                    f"'{section}' stands outside the tables of this file: write it below {_place(section)}."
                )
            flat[section] = values
            continue
        if not isinstance(values, Mapping):
            raise UserError(f"{section} = {values!r} stands beside tables: write a line [{section}], then name = ...")
        own = dict(values)
        if section in _NAMED and "name" in own:
            flat[_NAMED[section]] = own.pop("name")
        if section == "method":
            flat["options"] = own
            continue
        if section == "model" and isinstance(options := own.pop("options", {}), Mapping) and options:
            flat["model"] = _with_options(flat.get("model"), options)
        for given, value in own.items():
            option = f"{_PREFIX[section]}{given}" if section in _PREFIX else given
            if _SECTION_OF.get(option, section) != section:
                raise UserError(f"'{option}' stands in [{section}]: write it below {_place(option)}.")
            flat[option] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat table of options as tables; options of no section stand before them."""
    nested: dict[str, Any] = {}
    for option, value in flat.items():
        section = _SECTION_OF.get(option)
        if option == "method":
            nested["method"] = {"name": value, **nested.get("method", {})}
        elif option == "options":
            nested["method"] = {**nested.get("method", {}), **value}
        elif section is None:
            nested = {option: value, **nested}
        else:
            name = "name" if option == _NAMED.get(section) else option.removeprefix(_PREFIX.get(section, ""))
            nested.setdefault(section, {})[name] = value
    return nested


def _place(option: str) -> str:
    """Return where an option belongs."""
    section = _SECTION_OF[option]
    return f"[{section}] as name" if option == _NAMED.get(section) else f"[{section}]"


def _with_options(model: Any, options: Mapping[str, Any]) -> str:
    """Return the name of a network with the arguments that its factory is called with besides example and outputs."""
    if not isinstance(model, str) or ":" not in model:
        raise UserError("[model.options] needs a network of yours: write name = 'module:factory' below [model].")
    return f"{model}({', '.join(f'{name}={value!r}' for name, value in sorted(options.items()))})"
