"""Checks before a party starts, or while it waits: the kit, the port, the connection to the coordinator."""

import os
import socket
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

from factorized_fl.core.errors import UserError
from factorized_fl.silo.agreement import LOOPBACK, NOISE_SEED, Kit
from factorized_fl.silo.finish import has_ended
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.status import write_status
from factorized_fl.silo.transport import Credentials, network

_TOO_OPEN = 0o027  # a key may be readable by its group, as a secret that is mounted into a container is
_EVERY = 5.0  # seconds between two attempts to connect to the coordinator
_TIMEOUT = 3.0
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # in the order in which gRPC looks for them
_PATIENCE = 5.0  # seconds that a killed coordinator's process may still hold the port
_WRITTEN_BY_A_PARTY = ("run", "alone", "model", "log", "ended", "status.json", NOISE_SEED)


def check_kit(kit: Kit) -> None:
    """Raise UserError if a file of the kit is missing, or its certificate is invalid or of another federation."""
    files = network().credentials(kit)
    for file in files:
        if file == files.certificate and not file.is_file() and files.root.is_file():
            raise UserError(
                f"The kit has lost '{file.relative_to(kit.path)}', or {kit.party} has no certificate yet: "
                f"`ffl federation request {kit.path}`, send the request to the authority, and install its approval."
            )
        if not file.is_file():
            raise UserError(f"The kit has lost '{file.relative_to(kit.path)}': ask for a new one.")
        if not os.access(file, os.R_OK):
            raise UserError(f"You may not read '{file}': use the kit as the user who unpacked it.")
    mode = files.key.stat().st_mode
    if os.name == "posix" and mode & _TOO_OPEN:
        raise UserError(
            f"Other users of this machine may read or replace the private key '{files.key}' (mode {mode & 0o777:o}): "
            f"chmod 600 {files.key}."
        )
    _check_certificate(kit.party, files)


def _check_certificate(party: str, files: Credentials) -> None:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        own = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        issuer = x509.load_pem_x509_certificate(files.root.read_bytes())
        private = load_pem_private_key(files.key.read_bytes(), password=None)
        own.verify_directly_issued_by(issuer)
    except (OSError, ValueError, TypeError, InvalidSignature) as error:
        why = f" ({error})" if str(error) else ""
        told = f"The kit's certificate, key and root do not belong together{why}: ask for a new one."
        raise UserError(told) from None
    if private.public_key() != own.public_key():
        raise UserError(f"'{files.key.name}' is not the key of '{files.certificate.name}': ask for a new kit.")
    names = [str(name.value) for name in own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    if names != [party]:
        theirs = ", ".join(names)
        raise UserError(f"The kit is that of {party}, but its certificate is that of {theirs}: ask for a new one.")
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
    """Raise UserError if the kit holds a link: it comes from another party, and must not redirect what is written."""
    for folder, folders, files in os.walk(kit.path):
        for name in (*folders, *files):
            if (path := Path(folder) / name).is_symlink():
                raise UserError(f"'{path}' is a link, and a kit holds none: remove it, or move the whole kit instead.")


def refuse_leftovers(kit: Kit) -> None:
    """Raise UserError if a kit that is used for the first time already holds results, choices or random numbers."""
    for name in _WRITTEN_BY_A_PARTY:
        path = kit.path / name
        empty = path.is_dir() and not any(path.iterdir())  # a mount point, for example
        if path.exists() and not empty:
            raise UserError(
                f"The kit holds '{name}', which no new kit does, but no site.toml: if you received it like that, ask "
                "for a new one; if you lost the file, write it again, with data, device, report and alone."
            )


def check_port(kit: Kit) -> None:
    """Raise UserError if another process listens on the port: gRPC would share it, and sites would reach either."""
    host = "127.0.0.1" if kit.agreement.address in LOOPBACK else ""  # the addresses that the transport listens on
    until = time.monotonic() + _PATIENCE
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, kit.agreement.port))
                probe.listen(1)
                return
            except OSError as error:
                if time.monotonic() > until:
                    why = f"cannot be opened ({error.strerror})"
                    raise UserError(f"Port {kit.agreement.port} {why}: free it first.") from None
        time.sleep(0.2)


class ConnectionCheck:
    """Tries a site's connection to its coordinator until it works: the transport retries without naming the reason."""

    def __init__(self, kit: Kit, journal: Journal) -> None:
        self.kit, self.journal = kit, journal
        self.open = kit.is_coordinator
        self.said = ""
        self.next = time.monotonic() + _EVERY
        if not self.open and (proxy := proxy_for(kit.agreement.address)) is not None:
            host = proxy[0].rpartition("@")[2]  # without a password
            journal(f"connects through the proxy {host}, because {proxy[1]} is set in the environment")

    def look(self) -> None:
        """Try once in a while; each problem is written to the journal once."""
        if self.open or time.monotonic() < self.next or has_ended(self.kit):  # at the end none is needed any more
            return
        problem = connection_problem(self.kit)
        self.open = not problem
        if problem != self.said:
            self.journal(f"{problem}: trying again" if problem else "the coordinator answers now")
            write_status(self.kit, problem or "waiting for the coordinator")
            self.said = problem
        self.next = time.monotonic() + _EVERY


def proxy_for(address: str) -> tuple[str, str] | None:
    """The proxy through which the transport connects to this address and the variable that sets it; None without."""
    for skip in ("no_grpc_proxy", "no_proxy"):
        if proxy_bypass_environment(address, {"no": os.environ.get(skip, "")}):
            return None
    return next(((os.environ[name], name) for name in _PROXIES if os.environ.get(name)), None)


def _connect(address: str, port: int) -> socket.socket:
    """A connection to the coordinator, through the proxy of the environment if there is one; raises OSError."""
    proxy = proxy_for(address)
    if proxy is None:
        return socket.create_connection((address, port), timeout=_TIMEOUT)
    url, name = proxy
    through = urlsplit(url if "//" in url else f"//{url}")
    try:
        line = socket.create_connection((through.hostname or "", through.port or 3128), timeout=_TIMEOUT)
        line.sendall(f"CONNECT {address}:{port} HTTP/1.1\r\nHost: {address}:{port}\r\n\r\n".encode())
        status = line.recv(4096).split(b"\r\n")[0].decode(errors="replace")
    except (OSError, ValueError) as error:
        status = str(error)
    if " 200" in status:
        return line
    raise OSError(
        f"the proxy of {name} in the environment says '{status}': add {address} to no_proxy to connect without it, "
        f"or let the proxy connect to port {port}"
    )


def connection_problem(kit: Kit) -> str:
    """The reason why a site cannot connect to its coordinator, an empty string if it can."""
    address, port = kit.agreement.address, kit.agreement.port
    files = network().credentials(kit)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    try:
        context.load_verify_locations(files.root)
        context.load_cert_chain(files.certificate, files.key)
        with _connect(address, port) as line, context.wrap_socket(line):
            return ""
    except ssl.SSLCertVerificationError as error:
        return f"the TLS certificate at {address}:{port} is not this federation's ({error.verify_message})"
    except (OSError, ValueError) as error:
        return f"the coordinator at {address}:{port} cannot be reached ({error})"
