"""The methods, one small file each; cards.toml holds the texts that are reported about them."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from factorized_fl.core.card import Card
from factorized_fl.core.errors import UserError, unknown
from factorized_fl.core.method import Method
from factorized_fl.core.options import limits_of, make
from factorized_fl.methods.ablations import FactorizedFedAvg, MixedLayout, RandomMatching, WithoutMu, WorstMatching
from factorized_fl.methods.apfl import APFL
from factorized_fl.methods.clustered_fl import ClusteredFL
from factorized_fl.methods.ditto import Ditto
from factorized_fl.methods.factorized_fl import FactorizedFL, FactorizedFLBeta
from factorized_fl.methods.fedala import FedALA
from factorized_fl.methods.fedamp import FedAMP
from factorized_fl.methods.fedap import FedAP
from factorized_fl.methods.fedavg import FedAvg
from factorized_fl.methods.fedavgm import FedAvgM
from factorized_fl.methods.fedbabu import FedBABU
from factorized_fl.methods.fedbn import FedBN
from factorized_fl.methods.fedcac import FedCAC
from factorized_fl.methods.fedfomo import FedFOMO
from factorized_fl.methods.fedper import FedPer
from factorized_fl.methods.fedproto import FedProto
from factorized_fl.methods.fedprox import FedProx
from factorized_fl.methods.fedrep import FedRep
from factorized_fl.methods.ifca import IFCA
from factorized_fl.methods.knn_per import KNNPer
from factorized_fl.methods.mr_mtl import MRMTL
from factorized_fl.methods.pacfl import PACFL
from factorized_fl.methods.peers import FactorizedPeers
from factorized_fl.methods.per_fedavg import PerFedAvg
from factorized_fl.methods.pfedme import PFedMe
from factorized_fl.methods.pfedpara import PFedPara
from factorized_fl.methods.scaffold import Scaffold
from factorized_fl.methods.stand_alone import StandAlone

METHODS: dict[str, type[Method]] = {}


def register(method: type[Method]) -> type[Method]:
    """Make a method known by its name; used as a decorator of its class.

    Args:
        method: a frozen dataclass that inherits `ffl.Method`.

    Returns:
        The same class.

    Raises:
        UserError: if the class is malformed, or its name is taken.
    """
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise UserError(f"{method!r} is not a method: let its class inherit ffl.Method.")
    if not hasattr(method, "name"):
        raise UserError(f"The method {method.__name__} has no 'name': give its class one.")
    if not (isinstance(method.name, str) and re.fullmatch("[a-z0-9][a-z0-9-]*", method.name)):
        raise UserError(f"The name {method.name!r} is not valid for a method: use small letters, digits and hyphens.")
    if not isinstance(method.card, Card):
        raise UserError(f"The card of {method.name} must be a Card: write card = ffl.Card(title=...), or leave it out.")
    if any(isinstance(value, dataclasses.Field) for value in vars(method).values()):
        raise UserError(f"{method.__name__} has options: put @dataclass(frozen=True) right above its class.")
    if bare := [f.name for f in dataclasses.fields(method) if f.default is f.default_factory]:  # both are missing
        raise UserError(f"The option '{bare[0]}' of {method.name} has no default: give it one, as in ffl.option(...).")
    if method.name in INSTALLED:
        raise UserError(f"There is a method '{method.name}' already: give yours another name.")
    if "card" not in vars(method):  # an inherited card is about another method
        method.card = dataclasses.replace(method.card, title="", paper="unpublished", published_gb=None, control="")
    if not method.card.title:
        method.card = dataclasses.replace(method.card, title=method.name)
    METHODS[method.name] = method
    return method


INSTALLED: frozenset[str] = frozenset()  # the names of the package's own methods
for _method in (
    *(StandAlone, FedAvg, FedProx, ClusteredFL, PerFedAvg, FedFOMO, PFedPara, FactorizedFL, FactorizedFLBeta),
    *(FactorizedFedAvg, WithoutMu, RandomMatching, WorstMatching, MixedLayout, FactorizedPeers),
    *(FedPer, FedRep, FedBN, Ditto, MRMTL, PFedMe, FedALA, FedAMP, FedCAC, Scaffold, FedAvgM, FedAP),
    *(FedBABU, APFL, KNNPer, IFCA, PACFL, FedProto),
):
    register(_method)
INSTALLED = frozenset(METHODS)


def find_method(name: str) -> type[Method]:
    """Returns the method of that name; raises UserError if there is none."""
    if isinstance(name, type):
        raise UserError(f"method = {name.__name__} is a class: register it with @ffl.register, and give its name.")
    if not isinstance(name, str) or name not in METHODS:
        raise UserError(
            f"{unknown('method', str(name), METHODS, '`ffl methods`')} A method of your own needs `ffl --load FILE.py`."
        )
    return METHODS[name]


def label_refusal(method: Method) -> str:
    """Returns the error for clients whose labels disagree, with some methods that such clients can use."""
    can = [name for name in ("fedavg", "fedrep", "ditto", "factorized-peers") if name in METHODS]
    cannot = ", ".join(name for name, other in METHODS.items() if other.needs_agreeing_labels)
    return (
        f"{method.name} compares classes by their numbers, so it cannot be used: choose {', '.join(can[:-1])} or "
        f"{can[-1]}, or any other method except {cannot}; or set align = "
        "'statistics', so that classes are matched."
    )


def class_refusal(method: Method) -> str:
    """Returns the error for targets that are no classes, with some methods that serve them."""
    cannot = ", ".join(name for name, other in METHODS.items() if other.needs_classes)
    return f"{method.name} needs a class for each example: choose fedavg or any other method except {cannot}."


def encryptable() -> list[str]:
    """The methods whose weights do not depend on shared tensors; with the option that this needs, if any."""
    found = []
    for name, cls in METHODS.items():
        first = cls()
        choices = [
            (field.name, choice)
            for field in dataclasses.fields(cls)
            if (limits := limits_of(field))
            for choice in limits.choices
        ]
        if not first.reads_tensors:
            found.append(name)
        elif option := next((f"{n}={c}" for n, c in choices if not _reads(first, n, c)), None):
            found.append(f"{name} with {option}")
    return found


def coverable() -> list[str]:
    """The methods that use images in gradient steps alone, or in statistics to which calibrated noise is added."""
    found = []
    for name, cls in METHODS.items():
        first = cls()
        if not first.reads_images and first.looks_privately >= first.looks_at_images:
            found.append(name)
    return found


def _reads(method: Method, name: str, value: str) -> bool:
    """Whether the method reads shared tensors with this value of an option; True if the value does not fit."""
    try:
        changed: dict[str, Any] = {name: value}
        return dataclasses.replace(method, **changed).reads_tensors
    except UserError:
        return True


def sentence_of(method: type[Method]) -> str:
    """Return the method in one sentence: the first line of its docstring, or its title without one."""
    text = vars(method).get("__doc__") or ""
    if text.startswith(f"{method.__name__}("):  # dataclasses write such a text where there is no docstring
        text = ""
    return text.strip().partition("\n")[0].strip() or method.card.title


def make_method(name: str, options: Mapping[str, Any]) -> Method:
    """Returns a method with its options."""
    return make(find_method(name), options, f"option of {name}")


__all__ = [
    "INSTALLED",
    "METHODS",
    "Card",
    "Method",
    "class_refusal",
    "encryptable",
    "find_method",
    "label_refusal",
    "make_method",
    "register",
    "sentence_of",
]
