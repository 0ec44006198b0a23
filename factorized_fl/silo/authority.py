"""The authority of a federation whose parties make their own keys: it approves requests, and signs notices of members.

The folder of the authority holds its private key and a register of what it approved. It never sees the private key of a
party. A notice names all sites and those that are revoked; the coordinator acts on it.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.core.options import make
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import Agreement, Kit, check_names
from factorized_fl.silo.keys import Request, fingerprint, read_request, sign_notice
from factorized_fl.silo.transport import network

ROOT_KEY, ROOT = "root.key", "rootCA.pem"
_REGISTER = "register.json"
_AUTHORITY_YEARS = 10
DAYS = 90  # days for which a certificate is valid by default
_SKEW = timedelta(minutes=5)  # clocks of parties differ


@dataclass
class Register:
    """The certificates, sites and rounds that an authority has approved."""

    agreement: Agreement
    table: dict[str, Any]  # the training configuration
    approved: dict[str, str] = field(default_factory=dict)  # fingerprint of each party's key
    revoked: list[str] = field(default_factory=list)
    number: int = 0  # the number of the last notice


def found(folder: Path, agreement: Agreement, table: dict[str, Any]) -> bytes:
    """Make the authority's key and register in a new folder; returns its certificate."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    now = datetime.now(UTC)
    root = network().make_root(agreement.name, key, now - _SKEW, now + timedelta(days=365 * _AUTHORITY_YEARS))
    folder.mkdir(mode=0o700, parents=True)
    form = serialization.PrivateFormat.PKCS8
    write_private(folder / ROOT_KEY, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    write_atomically(folder / ROOT, root)
    _write(folder, Register(agreement, table))
    return root


def write_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read."""
    write_atomically(path, content)
    path.chmod(0o600)


def read_register(folder: Path) -> Register:
    """The register of an authority; raises UserError if the folder has none."""
    try:
        table = json.loads((folder / _REGISTER).read_text(encoding="utf-8"))
        agreement = make(Agreement, table.pop("agreement"), "entry")
        return Register(agreement, **table)
    except FileNotFoundError:
        why = "its parties do not make their own keys" if (folder / "cert.json").exists() else "it is no authority's"
        raise UserError(f"'{folder}' has no {_REGISTER}: {why} (`ffl federation new --own-keys`).") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"'{folder / _REGISTER}' is damaged ({error}): restore it from a copy.") from None


def _write(folder: Path, register: Register) -> None:
    write_private(folder / _REGISTER, json.dumps(asdict(register), indent=2).encode())


@contextmanager
def _changing(folder: Path) -> Iterator[Register]:
    register = read_register(folder)
    yield register
    with plain_errors(folder):
        _write(folder, register)


def approve(folder: Path, party: str, request: Path, out: Path, days: float = DAYS, new_key: bool = False) -> str:
    """Sign a party's request and write the approval; returns the fingerprint of the party's key.

    Raises UserError for a request that is not the party's, or with another key than before unless `new_key` is set.
    """
    with _changing(folder) as register:
        known = (COORDINATOR, *register.agreement.sites)
        if party not in known:
            raise UserError(f"'{party}' is no party of {register.agreement.name}: name one of {', '.join(known)}.")
        if party in register.revoked:
            raise UserError(f"{party} is revoked: `ffl federation add` makes it a member again.")
        asked = read_request(request)
        _check(asked, party, register.agreement, request)
        print_of_key = fingerprint(asked.key)
        before = register.approved.get(party)
        if before not in (None, print_of_key) and not new_key:
            raise UserError(
                f"The request '{request}' has the key {print_of_key}, and {party} was approved with {before}: ask "
                f"{party} whether it made a new key, and repeat with --new-key if it did."
            )
        now = datetime.now(UTC)
        key, root = (folder / ROOT_KEY).read_bytes(), (folder / ROOT).read_bytes()
        end = now + timedelta(days=days)
        approval = network().make_certificate(party, register.agreement, asked.key, key, root, now - _SKEW, end)
        with plain_errors(out):
            write_atomically(out, approval)
        register.approved[party] = print_of_key
    return print_of_key


def _check(asked: Request, party: str, agreement: Agreement, path: Path) -> None:
    if asked.party != party:
        raise UserError(f"'{path}' is a request of {asked.party}, not of {party}: ask {party} for its own.")
    if asked.federation != agreement.id:
        raise UserError(f"'{path}' is a request for another federation: {party} has to use its kit of this one.")


def add(folder: Path, site: str) -> Register:
    """Make a new or revoked site a member; returns the register, with the number of a new notice."""
    with _changing(folder) as register:
        if site in register.revoked:
            register.revoked.remove(site)
            register.approved.pop(site, None)
        elif site in (COORDINATOR, *register.agreement.sites):
            raise UserError(f"{site} is a party of {register.agreement.name} already.")
        elif register.table.get("protect") == "encrypt":
            raise UserError(f"{register.agreement.name} encrypts for a fixed number of sites: {site} cannot be added.")
        else:
            agreement = replace(register.agreement, sites=(*register.agreement.sites, site))
            check_names(agreement)
            register.agreement = agreement
            register.table["clients"] = len(agreement.sites)
        register.number += 1
    return register


def revoke(folder: Path, site: str) -> Register:
    """Revoke a site; returns the register, with the number of a new notice."""
    with _changing(folder) as register:
        if site not in register.agreement.sites or site in register.revoked:
            raise UserError(f"'{site}' is no member of {register.agreement.name}, so it cannot be revoked.")
        register.revoked.append(site)
        register.number += 1
    return register


def extend(folder: Path, rounds: int) -> Register:
    """Raise the number of rounds; returns the register, with the number of a new notice."""
    with _changing(folder) as register:
        if rounds <= (before := int(register.table["rounds"])):
            raise UserError(f"{register.agreement.name} has {before} rounds: extend it to more, not to {rounds}.")
        register.table["rounds"] = rounds
        register.number += 1
    return register


def write_notice(folder: Path, out: Path) -> None:
    """Write the signed notice of all members and of the rounds."""
    register = read_register(folder)
    content = {
        "federation": register.agreement.id,
        "number": register.number,
        "sites": list(register.agreement.sites),
        "revoked": register.revoked,
        "rounds": register.table["rounds"],
    }
    with plain_errors(out):
        write_atomically(out, sign_notice(content, (folder / ROOT_KEY).read_bytes()))


def kit_of(register: Register, folder: Path, party: str) -> Kit:
    """The kit of a party, without keys, in a folder."""
    return Kit(folder, party, register.agreement, register.table)
