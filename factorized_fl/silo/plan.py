"""What the parties of a federation agree on (sites.toml), and what each finds in its kit (federation.toml)."""

import dataclasses
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from factorized_fl.config import Config, from_table, read_table
from factorized_fl.core.errors import UserError, unknown
from factorized_fl.core.options import check, make, option
from factorized_fl.methods import INSTALLED

COORDINATOR = "coordinator"
AUTHORITY = "authority"  # who signs certificates: a folder beside the kits
_TAKEN = (COORDINATOR, AUTHORITY, "server")  # the last by FLARE, for the coordinator
FEDERATION = "federation.toml"
LOOPBACK = ("localhost", "127.0.0.1")
RUN, ALONE = "run", "alone"  # folders of a kit
NOISE_SEED = "noise-seed"  # a file of a site's kit
_COORDINATORS = ("address", "port", "quorum", "deadline")  # how it is reached and how long it waits
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_FIXED = (
    *("dataset", "preset", "clients", "clients_per_domain", "images_per_client", "partition", "alpha"),
    *("permuted", "permutation_seed", "partition_seed", "scrambled", "dropout", "score"),
)


@dataclass(frozen=True)
class Plan:
    """A federation between organisations, besides what is trained."""

    name: str = option("", "the federation's name: small letters, digits and dashes")
    address: str = option("localhost", "the host name under which the sites reach the coordinator")
    port: int = option(8443, "the coordinator's port, the only one that must be reachable", low=1, high=65535)
    quorum: int = option(0, "answers without which no round ends; 0: more than half", low=0)
    deadline: float = option(3600.0, "seconds after which a round goes on without the missing", low=1)
    sites: tuple[str, ...] = ()
    largest: int = 0  # bytes that no honest message exceeds
    id: str = ""  # tells this federation's messages and files from any other's

    def __post_init__(self) -> None:
        check(self)

    @property
    def needed(self) -> int:
        """The quorum in sites."""
        return self.quorum or len(self.sites) // 2 + 1


@dataclass(frozen=True)
class Kit:
    """One party's folder: who it is, what was agreed, and where its files are."""

    path: Path
    party: str
    plan: Plan
    config: Config

    @property
    def is_coordinator(self) -> bool:
        """Whether this is the coordinator's kit."""
        return self.party == COORDINATOR

    @property
    def seat(self) -> int:
        """The site's place among the sites, from 0."""
        return self.plan.sites.index(self.party)

    @property
    def agreement(self) -> str:
        """A mark of what must be the same at all parties, but for what only the coordinator heeds."""
        terms = {key: value for key, value in dataclasses.asdict(self.plan).items() if key not in _COORDINATORS}
        content = json.dumps([terms, self.config.to_toml()], sort_keys=True)
        return blake2b(content.encode(), digest_size=16).hexdigest()

    @property
    def keys(self) -> Path:
        """Where the party's key and certificates are."""
        return self.path / "flare" / "startup"

    @property
    def workspace(self) -> Path:
        """The folder of FLARE's process, which a start makes anew."""
        return self.path / "workspace"

    @property
    def run(self) -> Path:
        """Where the party's results go, in the shape of every run's directory."""
        return self.path / RUN

    @property
    def alone(self) -> Path:
        """Where a site's Stand-Alone run goes."""
        return self.path / ALONE

    @property
    def model(self) -> Path:
        """Where a site's model goes."""
        return self.path / "model"

    @property
    def status(self) -> Path:
        """Where the party's processes say how things are."""
        return self.path / "status.json"

    @property
    def logs(self) -> Path:
        """The folder of logs."""
        return self.path / "log"


def read_plan(path: Path) -> tuple[Plan, Config]:
    """The agreement of sites.toml: the federation's own keys, and any option of a run."""
    table = read_table(path)
    if fixed := [name for name in _FIXED if name in table]:
        raise UserError(f"{path} sets {fixed[0]}, which follows from the sites and their own data: leave it out.")
    given = table.pop("sites", [])
    if not isinstance(given, list) or not all(isinstance(site, dict) and "name" in site for site in given):
        raise UserError(f'{path} must list its sites, each as [[sites]] with name = "...".')
    names = [check_name(site["name"], "site") for site in given]
    if len(names) < 2 or len(set(names)) < len(names) or set(_TAKEN) & set(names):
        taken = " or ".join(f"'{name}'" for name in _TAKEN)
        raise UserError(f"{path} must name two or more sites, each once, and none of them {taken}.")
    if strange := sorted({key for site in given for key in site} - {"name"}):
        raise unknown("key of a site", strange[0], ["name"])
    own = {f.name for f in dataclasses.fields(Plan)} - {"sites", "id", "largest"}
    known = own | {f.name for f in dataclasses.fields(Config)} - set(_FIXED)
    if strange := [key for key in table if key not in known]:
        raise unknown("option", strange[0], {*known, "sites"})
    values = {key: value for key, value in table.items() if key in own}
    plan = make(Plan, {**values, "sites": names, "id": secrets.token_hex(8)}, "option of a federation")
    _check_plan(plan)
    if plan.needed > len(names):
        raise UserError(f"quorum = {plan.quorum} can never be met by {len(names)} sites.")
    return plan, _config({key: value for key, value in table.items() if key not in own}, len(names), path)


def _check_plan(plan: Plan) -> None:
    """Refuse a name or an address that would say more than that where FLARE's configuration is written."""
    check_name(plan.name, "federation")
    for site in plan.sites:
        check_name(site, "site")
    if not _HOST.fullmatch(plan.address):
        raise UserError(f"address = '{plan.address}' must be a host name or an IPv4 address, without the port.")


def check_name(name: Any, what: str) -> str:
    """Names become folders, certificates and words in logs, so they are plain."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(f"The name {name!r} of a {what} must be 1 to 40 small letters, digits and inner dashes.")
    return name


def _config(table: Mapping[str, Any], sites: int, path: Path) -> Config:
    config = from_table({**table, "dataset": "folder", "clients": sites})
    missing = ["image_size"] if not config.image_size else []
    missing += ["channels to 1 or 3"] if config.channels not in (1, 3) else []
    if missing:
        raise UserError(f"{path} must set {' and '.join(missing)}: all sites train the same network.")
    if config.method not in INSTALLED:
        raise UserError(f"'{config.method}' is a method of your own: between organisations only installed code runs.")
    return config


def write_kit(path: Path, party: str, plan: Plan, config: Config) -> str:
    """The text of federation.toml."""
    lines = [f"party = {json.dumps(party)}", "", "[federation]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in dataclasses.asdict(plan).items()]
    own, _, options = config.to_toml().partition("[options]")
    return "\n".join(lines) + f"\n\n[run]\n{own}\n[run.options]{options}"


def read_kit(path: Path) -> Kit:
    """The kit in a folder."""
    path = path.resolve()
    if not (path / FEDERATION).is_file():
        raise UserError(f"'{path}' is no kit: it has no {FEDERATION}; make kits with `ffl federation new sites.toml`.")
    table = read_table(path / FEDERATION)
    try:
        party, plan, config = table["party"], make(Plan, table["federation"], "entry"), from_table(table["run"])
    except (KeyError, TypeError) as error:
        raise UserError(f"'{path / FEDERATION}' is incomplete ({error}): ask for a new kit.") from None
    _check_plan(plan)
    if party not in (COORDINATOR, *plan.sites):
        raise UserError(f"'{path / FEDERATION}' is for '{party}', who is no party of {plan.name}: ask for a new kit.")
    return Kit(path, party, plan, config)
