"""What can be found out before a party starts, or while it waits: a kit that is not whole, a port, the way there."""

import contextlib
import os
import socket
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path

from factorized_fl.core.errors import UserError
from factorized_fl.silo.finish import has_ended
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.kits import key_files
from factorized_fl.silo.plan import LOOPBACK, NOISE_SEED, Kit
from factorized_fl.silo.status import write_status

_EVERY = 5.0  # seconds between two looks at the way to the coordinator
_PATIENCE = 5.0  # seconds that a killed coordinator's process may still hold the port
_OF_A_PARTY = ("run", "alone", "model", "log", "ended", "status.json", NOISE_SEED, "processes.json")


def check_kit(kit: Kit) -> None:
    """Refuse a kit that has lost a file, or whose certificate is not valid today or not of this federation."""
    files = [kit.keys / name for name in key_files(kit.party)]
    for file in files:
        if not file.is_file():
            raise UserError(f"The kit has lost '{file.relative_to(kit.path)}': ask for a new one.")
        if not os.access(file, os.R_OK):
            raise UserError(f"You may not read '{file}': the kit belongs to whoever unpacked it.")
    _check_certificate(kit.party, *files)


def _check_certificate(party: str, certificate: Path, key: Path, root: Path) -> None:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        own = x509.load_pem_x509_certificate(certificate.read_bytes())
        issuer = x509.load_pem_x509_certificate(root.read_bytes())
        private = load_pem_private_key(key.read_bytes(), password=None)
        own.verify_directly_issued_by(issuer)
    except (OSError, ValueError, TypeError, InvalidSignature) as error:
        why = f" ({error})" if str(error) else ""
        raise UserError(
            f"The kit's certificate, key and root do not belong together{why}: ask for a new one."
        ) from None
    if private.public_key() != own.public_key():
        raise UserError(f"'{key.name}' is not the key of '{certificate.name}': ask for a new kit.")
    names = [str(name.value) for name in own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    if names != [party]:
        whose = ", ".join(names)
        raise UserError(f"The kit is that of {party}, but its certificate that of {whose}: ask for a new one.")
    now = datetime.now(UTC)
    for found in (own, issuer):
        if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
            moments = (found.not_valid_before_utc, found.not_valid_after_utc, now)
            begin, end, here = (f"{moment:%Y-%m-%d %H:%M}" for moment in moments)
            raise UserError(
                f"The kit's certificates are valid from {begin} to {end}, and it is {here} here, all in UTC: "
                "set this machine's clock if it is wrong, else ask for a new kit."
            )


def refuse_links(kit: Kit) -> None:
    """A kit comes from somebody else: what is written into it must not end up elsewhere."""
    for path in (*kit.path.glob("*"), *kit.logs.glob("*"), *kit.run.glob("*")):
        if path.is_symlink():
            raise UserError(f"'{path}' is a link, and a kit holds none: remove it, or move the whole kit instead.")


def refuse_leftovers(kit: Kit) -> None:
    """Whoever joins for the first time begins: nobody has trained, decided or drawn anything for it."""
    for name in _OF_A_PARTY:
        path = kit.path / name
        empty = path.is_dir() and not any(path.iterdir())  # perhaps a disk of its own
        if path.exists() and not empty:
            raise UserError(
                f"The kit holds '{name}', which no new kit does, but no site.toml of yours: if it came like that "
                "ask for a new one, and if you lost the file write it again, with data, device, report and alone."
            )


def check_port(kit: Kit) -> None:
    """Refuse a port that somebody else listens on; FLARE would share it, and sites would come to either."""
    host = "127.0.0.1" if kit.plan.address in LOOPBACK else ""  # as FLARE does
    until = time.monotonic() + _PATIENCE
    while True:
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, kit.plan.port))
                probe.listen(1)
                return
            except OSError as error:
                if time.monotonic() > until:
                    raise UserError(
                        f"Port {kit.plan.port} cannot be opened ({error.strerror}): free it first."
                    ) from None
        time.sleep(0.2)


class Way:
    """A site's way to its coordinator, looked at until it is open: FLARE tries on and says nothing."""

    def __init__(self, kit: Kit, journal: Journal) -> None:
        self.kit, self.journal = kit, journal
        self.open = kit.is_coordinator
        self.said = ""
        self.next = time.monotonic() + _EVERY

    def look(self) -> None:
        """Now and then; what is in the way is told once."""
        if self.open or time.monotonic() < self.next:
            return
        if has_ended(self.kit):  # nobody is looked for any more
            self.open = True
            return
        trouble = find_trouble(self.kit)
        self.open = not trouble
        if trouble != self.said:
            self.journal(f"{trouble}: trying again" if trouble else "the coordinator answers now")
            write_status(self.kit, trouble or "waiting for the coordinator")
            self.said = trouble
        self.next = time.monotonic() + _EVERY


def find_trouble(kit: Kit) -> str:
    """Why the coordinator cannot be reached, nothing if it can."""
    where = f"{kit.plan.address}:{kit.plan.port}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(kit.keys / "rootCA.pem")
    context.load_cert_chain(kit.keys / "client.crt", kit.keys / "client.key")
    try:
        with (
            socket.create_connection((kit.plan.address, kit.plan.port), timeout=3) as line,
            context.wrap_socket(line),
        ):
            return ""
    except ssl.SSLCertVerificationError as error:
        return f"who answers at {where} is not the coordinator of this federation ({error.verify_message})"
    except (OSError, ValueError) as error:
        return f"the coordinator at {where} cannot be reached ({error})"
