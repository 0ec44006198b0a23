"""Keys that a party makes itself: its request, the authority's approval, and notices of members.

A private key is written to the party's kit and nowhere else. A request holds the public key and is signed with the
private one; an approval is a certificate. Requests, approvals and notices are no secrets, but the authority should
compare a request's fingerprint with its sender, for example by telephone.
"""

import base64
import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import Kit, check_names, read_json, write_kit
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.transport import network

NOTICE = "members.json"
_DAY, _SOON = 86400.0, 14.0  # seconds; days before the end of a certificate at which a warning is given
_NEXT = ".next"  # suffix of a key that waits for its approval
_NOTICE_KEYS = {"federation", "number", "sites", "revoked", "rounds"}
_OF_THE_END = ("run/summary.json", "run/told.json", "ended", "status.json")  # files of a party that has ended


@dataclass(frozen=True)
class Request:
    """A party's request for a certificate."""

    party: str
    federation: str
    key: Any  # the public key


@dataclass(frozen=True)
class Notice:
    """The members of a federation, as its authority last signed them."""

    number: int
    sites: tuple[str, ...]
    revoked: tuple[str, ...]
    rounds: int


def fingerprint(key: Any) -> str:
    """A digest of a public key that people can compare."""
    from cryptography.hazmat.primitives import serialization

    form = serialization.PublicFormat.SubjectPublicKeyInfo
    digest = sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()[:32]
    return " ".join(digest[place : place + 4] for place in range(0, len(digest), 4))


def make_request(kit: Kit, out: Path, new_key: bool = False) -> str:
    """Write a request for the party's certificate; returns the fingerprint of its key.

    The key is made if there is none, or with `new_key`: then it replaces the old one when its approval is installed.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509.oid import NameOID

    place = network().credentials(kit).key
    if new_key and place.exists():
        place = place.with_name(place.name + _NEXT)
    with plain_errors(kit.path):
        if not place.exists():
            key: Any = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            form, none = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.touch(mode=0o600)
            write_atomically(place, key.private_bytes(serialization.Encoding.PEM, form, none))
            place.chmod(0o600)
        key = serialization.load_pem_private_key(place.read_bytes(), password=None)
    names = [(NameOID.COMMON_NAME, kit.party), (NameOID.ORGANIZATION_NAME, kit.agreement.id)]
    name = x509.Name([x509.NameAttribute(kind, value) for kind, value in names])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    with plain_errors(out):
        write_atomically(out, request.public_bytes(serialization.Encoding.PEM))
    return fingerprint(key.public_key())


def read_request(path: Path) -> Request:
    """A request whose signature is that of its key; raises UserError otherwise."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        found = x509.load_pem_x509_csr(path.read_bytes())
        names = {
            kind: [str(each.value) for each in found.subject.get_attributes_for_oid(kind)]
            for kind in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)
        }
        (party,), (federation,) = names.values()
        valid = found.is_signature_valid
    except FileNotFoundError:
        raise UserError(f"There is no request '{path}'.") from None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"'{path}' is not a request of `ffl federation request` ({error}).") from None
    if not valid:
        raise UserError(f"The request '{path}' is not signed with its own key: it was changed on its way.")
    return Request(party, federation, found.public_key())


def install(kit: Kit, path: Path) -> str:
    """Use an approval or a notice of the authority; returns its content in a sentence."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"'{path}' cannot be read ({error.strerror}).") from None
    return _install_approval(kit, path, content) if b"BEGIN CERTIFICATE" in content else _install_notice(kit, path)


def _install_approval(kit: Kit, path: Path, content: bytes) -> str:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import NameOID

    files = network().credentials(kit)
    waiting = files.key.with_name(files.key.name + _NEXT)
    try:
        found = x509.load_pem_x509_certificate(content)
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(files.root.read_bytes()))
    except (OSError, ValueError, TypeError, InvalidSignature):
        raise UserError(f"'{path}' is not an approval of this federation's authority.") from None
    names = [str(each.value) for each in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [kit.party]:
        raise UserError(f"'{path}' is the approval of {', '.join(names)}, not of {kit.party}.")
    own = [key for key in (files.key, waiting) if key.exists()]
    keys = {key: load_pem_private_key(key.read_bytes(), password=None).public_key() for key in own}
    fitting = [key for key, public in keys.items() if public == found.public_key()]
    if not fitting:
        raise UserError(f"'{path}' approves another key than those of this kit: install the latest approval.")
    now, end = datetime.now(UTC), found.not_valid_after_utc
    if not found.not_valid_before_utc <= now <= end:
        begin = found.not_valid_before_utc
        raise UserError(f"'{path}' is valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, and not now.")
    if files.certificate.exists():
        current = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        if found.not_valid_before_utc < current.not_valid_before_utc:
            raise UserError(
                f"'{path}' is older than the certificate in use, of {current.not_valid_before_utc:%Y-%m-%d}."
            )
    with plain_errors(kit.path):
        if fitting == [waiting]:
            waiting.replace(files.key)
        write_atomically(files.certificate, content)
    return f"{kit.party} has a certificate until {end:%Y-%m-%d %H:%M} UTC"


def days_left(kit: Kit) -> float:
    """The days until the party's certificate expires, below zero if it has."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(network().credentials(kit).certificate.read_bytes())
    return (found.not_valid_after_utc - datetime.now(UTC)).total_seconds() / 86400


class ExpiryWarning:
    """Writes to the journal once a day that the party's certificate expires soon."""

    def __init__(self, kit: Kit, journal: Journal) -> None:
        self.kit, self.journal, self.next = kit, journal, 0.0

    def look(self) -> None:
        """Check the certificate, at most once a day."""
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + _DAY
        with suppress(OSError, ValueError):
            if (days := days_left(self.kit)) < _SOON:
                how = f"`ffl federation request {self.kit.path}`, then install the approval"
                self.journal(f"the certificate of {self.kit.party} expires in {max(days, 0):.0f} days: {how}")


# -- notices


def sign_notice(content: dict[str, Any], key: bytes) -> bytes:
    """A notice with the signature of the authority's key."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    text = json.dumps(content, sort_keys=True)
    private: Any = load_pem_private_key(key, password=None)
    signature = private.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    return json.dumps({"notice": text, "signature": base64.b64encode(signature).decode()}).encode()


def read_notice(kit: Kit, path: Path | None = None) -> Notice | None:
    """The notice of members in the kit or another file, None without one; raises UserError if it is not genuine."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    path = path or kit.path / NOTICE
    if not path.exists():
        return None
    found = read_json(path, dict) or {}
    try:
        public: Any = x509.load_pem_x509_certificate(network().credentials(kit).root.read_bytes()).public_key()
        signature = base64.b64decode(found["signature"], validate=True)
        public.verify(signature, found["notice"].encode(), padding.PKCS1v15(), hashes.SHA256())
        content = json.loads(found["notice"])
        if content.keys() != _NOTICE_KEYS or content["federation"] != kit.agreement.id:
            raise ValueError
    except (OSError, KeyError, ValueError, TypeError, AttributeError, InvalidSignature):
        raise UserError(f"'{path}' is not a notice of this federation's authority.") from None
    return Notice(content["number"], tuple(content["sites"]), tuple(content["revoked"]), content["rounds"])


def _install_notice(kit: Kit, path: Path) -> str:
    new, old = read_notice(kit, path), read_notice(kit)
    if new is None or (old is not None and new.number <= old.number):
        number = old.number if old else 0
        raise UserError(f"'{path}' is not newer than the notice in use, number {number}: ask for the latest.")
    sites = kit.agreement.sites
    if new.sites[: len(sites)] != sites:
        raise UserError(f"'{path}' changes the order of the sites: ask the authority for another notice.")
    more = new.rounds > kit.table["rounds"]
    if not kit.is_coordinator and not more:
        raise UserError(f"'{path}' is a notice of members, which only the coordinator needs.")
    agreement = replace(kit.agreement, sites=new.sites)
    check_names(agreement)
    table = {**kit.table, "clients": len(new.sites), "rounds": max(new.rounds, kit.table["rounds"])}
    with plain_errors(kit.path):
        write_atomically(kit.path / NOTICE, path.read_bytes())
        write_kit(replace(kit, agreement=agreement, table=table))
        if more:
            for name in _OF_THE_END:
                (kit.path / name).unlink(missing_ok=True)
            shutil.rmtree(kit.alone, ignore_errors=True)  # the control is trained again, for all rounds
    if more:
        start = "serve" if kit.is_coordinator else "join"
        return f"{kit.party} takes part in {new.rounds} rounds now: `ffl {start} {kit.path}` continues"
    added = [site for site in new.sites if site not in sites]
    words = [f"added {', '.join(added)}"] if added else []
    words += [f"revoked {', '.join(new.revoked)}"] if new.revoked else []
    return f"{COORDINATOR} knows {len(new.sites)} sites now: {'; '.join(words) or 'all are members'}"
