"""The agreement between the parties of a federation (sites.toml), and each party's copy in its kit (federation.toml).

This module does not import PyTorch: processes that only carry messages or supervise others also read kits.
"""

import dataclasses
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from factorized_fl.config import Config, from_table, read_table, resolve, upgrade
from factorized_fl.core.errors import UserError, unknown
from factorized_fl.core.files import write_atomically
from factorized_fl.core.options import check, make, option
from factorized_fl.core.shapes import input_kind
from factorized_fl.results.schema import ALONE, COORDINATOR, FEDERATION, RUN

T = TypeVar("T")

AUTHORITY = "authority"  # the folder, beside the kits, with the key that signs certificates
_RESERVED = (COORDINATOR, AUTHORITY, "server")  # the transport uses the last one for the coordinator
LOOPBACK = ("localhost", "127.0.0.1")
NOISE_SEED = "noise-seed"  # a file of a site's kit
SPENDING = "privacy-spent.json"  # a file of a site's kit
_MAY_DIFFER = (
    "address",
    "port",
    "quorum",
    "deadline",
    "change_limit",
    "sites",
)  # the terms that only the coordinator uses
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_MADE = {"sites", "id", "largest", "package", "version", "tensors"}  # not options of a federation
_NETWORK = ("width", "head_layers", "head_norm", "head_width")  # options of the built-in networks
_FIXED = (
    *("dataset", "preset", "clients", "clients_per_domain", "images_per_client", "partition", "alpha"),
    *(
        "permuted",
        "permutation_seed",
        "partition_seed",
        "scrambled",
        "dropout",
        "score",
        "control",
        "oracle",
        "test_every",
    ),
)


@dataclass(frozen=True)
class Agreement:
    """The terms of a federation between organisations, except for the training configuration."""

    name: str = option("", "the federation's name: small letters, digits and dashes")
    address: str = option("localhost", "the host name under which the sites reach the coordinator")
    port: int = option(8443, "the coordinator's port, the only one that must be reachable", low=1, high=65535)
    quorum: int = option(0, "answers that a round needs to end; 0: more than half of the sites", low=0)
    deadline: float = option(3600.0, "seconds after which a round continues without the missing sites", low=1)
    change_limit: float = option(
        3.0, "a site's change in a round counts up to so many times the group's median; 0: no limit", low=0, high=1e6
    )
    features: tuple[str, ...] = option((), "columns of the sites' tables that make a vector of numbers, in this order")
    sites: tuple[str, ...] = ()
    largest: int = 0  # limit on the bytes of a message
    id: str = ""  # random, distinguishes this federation's messages and files from those of others
    package: str = ""  # the installed package of a network that is not built in, and its version
    version: str = ""
    tensors: tuple[str, ...] = ()  # of that network: name, type, shape, a digest of frozen values

    def __post_init__(self) -> None:
        check(self)

    @property
    def needed(self) -> int:
        """The quorum as a number of sites."""
        return self.quorum or len(self.sites) // 2 + 1


@dataclass(frozen=True)
class Kit:
    """The folder of one party: its name, the agreement, and the paths of its files."""

    path: Path
    party: str
    agreement: Agreement
    table: Mapping[str, Any]  # the training configuration as it stands in the kit

    @cached_property
    def config(self) -> Config:
        """The training configuration. Imports PyTorch; raises UserError if this version does not accept it."""
        return from_table(upgrade(self.table))

    @property
    def is_coordinator(self) -> bool:
        """True if this is the coordinator's kit."""
        return self.party == COORDINATOR

    @property
    def seat(self) -> int:
        """The site's position among the sites, counted from 0."""
        return self.agreement.sites.index(self.party)

    @cached_property
    def terms(self) -> dict[str, str]:
        """Digests of the terms that must be the same at all parties, by name, without those at their defaults.

        So parties agree although one has a later version with a new option, if its default changes nothing.
        Imports PyTorch, because it reads `config`.
        """
        agreed = {name: value for name, value in _chosen(self.agreement).items() if name not in _MAY_DIFFER}
        of_run, of_method = _chosen(self.config), _chosen(self.config.build_method())
        agreed |= {name: value for name, value in of_run.items() if name not in ("clients", "options")}
        agreed |= {f"options_{name}": value for name, value in of_method.items()}
        return {
            name: _digest(value, 4) for name, value in agreed.items()
        }  # without the number of clients: sites may be added and revoked

    @property
    def mark(self) -> str:
        """A digest of the terms."""
        return _digest(self.terms, 16)

    @property
    def run(self) -> Path:
        """The run directory of this party."""
        return self.path / RUN

    @property
    def complete(self) -> bool:
        """True if the run directory says that all rounds are done."""
        return (self.run / "summary.json").is_file()

    @property
    def alone(self) -> Path:
        """The run directory of a site's Stand-Alone model."""
        return self.path / ALONE

    @property
    def model(self) -> Path:
        """The folder of a site's exported model."""
        return self.path / "model"

    @property
    def status(self) -> Path:
        """The file in which the party's processes report their state."""
        return self.path / "status.json"

    @property
    def logs(self) -> Path:
        """The folder of logs."""
        return self.path / "log"


def _chosen(options: Any) -> dict[str, Any]:
    """The entries of a dataclass that are not at their defaults."""
    standard = type(options)()
    names = [field.name for field in dataclasses.fields(options)]
    return {name: value for name in names if (value := getattr(options, name)) != getattr(standard, name)}


def _digest(value: Any, size: int) -> str:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=size).hexdigest()


def differing_terms(ours: Mapping[str, str], theirs: object) -> list[str]:
    """The names of terms that differ, at most ten; none if the other party did not send its terms."""
    if not isinstance(theirs, dict) or not ours:
        return []
    names = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    return [name[:40] for name in names if name.isidentifier()][:10]


def read_agreement(path: Path) -> tuple[Agreement, Config]:
    """The agreement in sites.toml: the terms of the federation, and the options of a run. Imports PyTorch."""
    from factorized_fl.methods import INSTALLED, label_refusal

    table = read_table(path)
    if "oracle" in table:
        raise UserError(
            f"{path} sets oracle, which needs the images and labels of all sites in one place: leave it out, and use "
            "it in simulations only."
        )
    if fixed := [name for name in _FIXED if name in table]:
        raise UserError(f"{path} sets {fixed[0]}, which follows from the sites and their own data: leave it out.")
    names = _site_names(table.pop("sites", []), path)
    own = {field.name for field in dataclasses.fields(Agreement)} - _MADE
    known = own | {field.name for field in dataclasses.fields(Config)} - set(_FIXED)
    if strange := [key for key in table if key not in known]:
        raise unknown("option", strange[0], {*known, "sites"})
    terms = {key: table.pop(key) for key in own & table.keys()}
    agreement = make(Agreement, {**terms, "sites": names, "id": secrets.token_hex(8)}, "option of a federation")
    check_names(agreement)
    if agreement.needed > len(names):
        raise UserError(f"quorum = {agreement.quorum} can never be met by {len(names)} sites.")
    config = _config(path, table, agreement)
    if config.has_own_model and (unused := [name for name in _NETWORK if name in table]):
        raise UserError(f"{path} sets {unused[0]}, which has no effect on {config.model}: leave it out.")
    if (method := config.build_method()).needs_agreeing_labels and config.align == "off":
        raise UserError(f"Sites may number their classes differently. {label_refusal(method)}")
    if config.align == "true":
        raise UserError(f"{path} sets align to the true names of classes, which stay at the sites: use statistics.")
    if config.align != "off" and not config.align_classes:
        raise UserError(
            f"{path} must set align_classes, the largest number of classes of a site: sites do not report theirs."
        )
    if config.method not in INSTALLED:
        raise UserError(f"'{config.method}' is a method of your own: between organisations only installed code runs.")
    return agreement, config


def _config(path: Path, table: dict[str, Any], agreement: Agreement) -> Config:
    """The training configuration of sites.toml; raises UserError unless it says what the inputs of all sites are."""
    columns = agreement.features
    if columns:
        table = {"inputs": f"float32 {len(columns)}", **table}
    if arrays := bool(table.get("inputs")):
        table = {"augment": "none", **table}
    config = resolve({**table, "dataset": "folder", "clients": len(agreement.sites)})
    if not arrays:
        missing = ["image_size"] if not config.image_size else []
        missing += ["channels to 1 or 3"] if config.channels not in (1, 3) else []
        if missing:
            raise UserError(
                f"{path} must set {' and '.join(missing)}: all sites train the same network; for other inputs than "
                "images set inputs or features instead."
            )
        return config
    kind = input_kind(config.inputs)
    if wrong := [name for name in ("image_size", "channels") if name in table]:
        raise UserError(f"{path} sets {wrong[0]}, but inputs = '{kind}' are no images: leave one of them out.")
    if config.augment == "paper":
        raise UserError(f"{path} sets augment = 'paper', which needs images, not inputs {kind}: leave it out.")
    if not config.has_own_model:
        raise UserError(
            f"{path} has the network {config.model}, which takes images, not inputs {kind}: name a network of an "
            "installed package with model."
        )
    if len(columns) > 1 and kind.shape != (len(columns),):
        raise UserError(f"{path} names {len(columns)} features, but inputs = '{kind}': leave inputs out.")
    return config


def _site_names(given: Any, path: Path) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(site, dict) and "name" in site for site in given):
        raise UserError(f'{path} must list its sites, each as [[sites]] with name = "...".')
    names = [site["name"] for site in given]
    if len(names) < 2 or any(name in _RESERVED or names.count(name) > 1 for name in names):
        reserved = " or ".join(f"'{name}'" for name in _RESERVED)
        raise UserError(f"{path} must name two or more sites, each once, and none of them {reserved}.")
    if strange := sorted({key for site in given for key in site} - {"name"}):
        raise unknown("key of a site", strange[0], ["name"])
    return names


def check_names(agreement: Agreement) -> None:
    """Refuse special characters: names become folders, certificates and parts of the transport's configuration."""
    for name, what in ((agreement.name, "federation"), *((site, "site") for site in agreement.sites)):
        if not _NAME.fullmatch(name):
            raise UserError(f"The name {name!r} of a {what} must be 1 to 40 small letters, digits and inner dashes.")
    if not _HOST.fullmatch(agreement.address):
        raise UserError(f"address = '{agreement.address}' must be a host name or an IPv4 address, without the port.")


def write_kit(kit: Kit) -> None:
    """Write the kit's federation.toml."""
    table = {"party": kit.party, "federation": dataclasses.asdict(kit.agreement), "run": kit.table}
    write_atomically(kit.path / FEDERATION, tomli_w.dumps(table).encode())


def read_kit(path: Path) -> Kit:
    """The kit in a folder. The training configuration in it is checked when `Kit.config` is first used."""
    path = path.resolve()
    if not (path / FEDERATION).is_file():
        raise UserError(
            f"'{path}' is not a kit: it has no {FEDERATION}; make kits with `ffl federation new sites.toml`."
        )
    table = read_table(path / FEDERATION)
    try:
        kit = Kit(path, table["party"], make(Agreement, table["federation"], "entry"), dict(table["run"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"'{path / FEDERATION}' is incomplete ({error}): ask for a new kit.") from None
    check_names(kit.agreement)
    if kit.party not in (COORDINATOR, *kit.agreement.sites):
        what = f"is for '{kit.party}', which is no party of {kit.agreement.name}"
        raise UserError(f"'{path / FEDERATION}' {what}: ask for a new kit.")
    return kit


def read_json(path: Path, kind: type[T]) -> T | None:
    """The content of a JSON file that this program wrote, None if it cannot be read or is of another kind."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, kind) else None
