"""Named starting points: the demo with embedded data, and the paper's scenarios."""

import dataclasses
from typing import Any

from factorized_fl.config import Config
from factorized_fl.core.errors import unknown

Table = dict[str, Any]
MATCHED = ("factorized-fl", "factorized-fl-beta", "random-matching", "worst-matching", "mixed-layout")


def _matching(tau: float, epsilon: float, **more: Any) -> Table:
    """The same matching options for every method that matches clients by similarity."""
    options = {"tau": tau, "epsilon": epsilon, **more}
    return dict.fromkeys(MATCHED, options)


def _released(tau: float, epsilon: float, minimum: int) -> Table:
    """All deviations of the authors' released code from their paper that exist as options here."""
    code = {"l1": False, "layout": "released", "head": "reset", "head_mu": "xavier", "sequential": True}
    return _matching(tau, epsilon, minimum=minimum, **code)


def _label_presets() -> dict[str, Table]:
    presets = {}
    for dataset in ("cifar10", "svhn"):
        for permuted in (False, True):
            for partition, ending in (("iid", "iid"), ("dirichlet", "non-iid")):
                name = f"{dataset}-{'permuted-' if permuted else ''}{ending}"
                table = {"dataset": dataset, "partition": partition, "permuted": permuted}
                presets[name] = {**table, "methods": _matching(0.0, 1.0)}
                minimum = 10 if permuted else 20
                presets[f"{name}-released"] = {**table, "methods": _released(0.0, 1.0, minimum)}
    return presets


_DOMAINS: Table = {"dataset": "cifar100-domains", "permuted": True, "rounds": 100}

_SMALL: Table = {
    "model": "cnn",
    "batch_size": 16,
    "lr": 0.02,
    "augment": "none",
    "clients": 12,
    "train_share": 0.6,
    "images_per_client": 60,
    "rounds": 12,
    "epochs": 4,
}

PRESETS: dict[str, Table] = {
    "demo": {
        **_SMALL,
        "dataset": "embedded",
        "permuted": True,
        "methods": _matching(0.0, 1.0),
    },
    "digits-iid": {**_SMALL, "dataset": "digits", "methods": _matching(0.0, 1.0)},
    "digits-permuted-iid": {**_SMALL, "dataset": "digits", "permuted": True, "methods": _matching(0.0, 1.0)},
    **_label_presets(),
    "cifar100-domains": {**_DOMAINS, "methods": _matching(0.75, 20.0)},
    "cifar100-domains-released": {**_DOMAINS, "methods": _released(0.95, 20.0, 4)},
}

DEMO_METHODS = ("stand-alone", "fedavg", "factorized-fl", "factorized-fl-beta", "factorized-peers")


def find_preset(name: str) -> Table:
    """The table of a preset, which holds the preset's name; raises a UserError for an unknown name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return {**PRESETS[name], "preset": name}


def preset_values(name: str) -> Table:
    """The values of all options of a run with a preset, without those of the methods."""
    defaults = {field.name: field.default for field in dataclasses.fields(Config) if field.name != "options"}
    return {**defaults, **{key: value for key, value in find_preset(name).items() if key in defaults}}
