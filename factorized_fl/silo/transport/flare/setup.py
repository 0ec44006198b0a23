"""Keys and certificates for all parties, FLARE's configuration at every start, and the process that runs FLARE.

FLARE's provisioning makes keys and certificates. A kit comes from another party, so nothing in it may decide which code
runs: at every start the installed package writes FLARE's configuration and policies. No administrator has any right, no
job may be submitted, no process launcher is installed, only classes of this package may be built, and a site streams no
log to the coordinator.
"""

import contextlib
import importlib.util
import io
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import AUTHORITY, Agreement, Kit
from factorized_fl.silo.transport import Credentials

LIMIT = "NVFLARE_STREAMING_MAX_BLOB_SIZE"  # the variable with FLARE's limit on the bytes of a message
VERSIONS = "nvflare>=2.9,<2.10"
_KEYS = Path("flare") / "startup"  # in a kit
_IMPOSTOR = re.compile(r"authenticated as '([^']{1,64})' but claimed endpoint '([^']{1,64})'")
_REFUSALS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate was shown",
    "CERTIFICATE_VERIFY_FAILED": "the certificate is expired, not yet valid or of another authority",
    "Handshake failed": "it did not use TLS as this federation does",
    "invalid auth token signature": "a message carried the name of another site",
}
_SMALLEST_LIMIT = 1_000_000
_ORGANISATION = "party"  # FLARE wants one for each party, without dashes; no right depends on it
_COMPONENTS = "factorized_fl.silo.transport.flare.components"
_COORDINATOR, _SITE = f"{_COMPONENTS}.CoordinatorComponent", f"{_COMPONENTS}.SiteComponent"


def require_installed() -> None:
    """Raise UserError if FLARE is missing."""
    if importlib.util.find_spec("nvflare") is None:
        raise UserError('Federations between organisations need FLARE: pip install "factorized-fl[network]".')


def make_credentials(agreement: Agreement, out: Path) -> None:
    """Write every party's credentials to its folder in `out`, and the authority's key to a folder beside them."""
    with tempfile.TemporaryDirectory() as scratch:
        provisioned = provision(agreement, Path(scratch))
        for party in (COORDINATOR, *agreement.sites):
            keys = out / party / _KEYS
            keys.mkdir(parents=True)
            for name in _file_names(party):
                shutil.copy(provisioned / party / "startup" / name, keys)
        shutil.copytree(provisioned.parent / "state", out / AUTHORITY)


def provision(agreement: Agreement, folder: Path, administrator: str | None = None) -> Path:
    """Let FLARE make an authority, keys and certificates; returns the folder that holds a folder for each party."""
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    server = {"name": COORDINATOR, "type": "server", "org": _ORGANISATION, "default_host": agreement.address}
    parties: list[dict[str, Any]] = [server | {"fed_learn_port": agreement.port}]
    parties += [{"name": site, "type": "client", "org": _ORGANISATION} for site in agreement.sites]
    if administrator:
        parties.append({"name": administrator, "type": "admin", "org": _ORGANISATION, "role": "project_admin"})
    static = {"config_folder": "config", "scheme": "grpc"}
    project = {
        "api_version": 3,
        "name": agreement.name,
        "description": "",
        "participants": parties,
        "builders": [
            {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder"},
            {"path": "nvflare.lighter.impl.static_file.StaticFileBuilder", "args": static},
            {"path": "nvflare.lighter.impl.cert.CertBuilder"},
            {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
        ],
    }
    with contextlib.redirect_stdout(io.StringIO()):  # FLARE prints the path of a temporary folder
        Provisioner(str(folder), prepare_builders(project)).provision(prepare_project(project))
    return folder / agreement.name / "prod_00"


def make_root(name: str, key: Any, begin: datetime, end: datetime) -> bytes:
    """The certificate of an authority with this private key, as PEM."""
    from nvflare.lighter.utils import Identity, generate_cert, serialize_cert

    who = Identity(name)
    valid = {"not_valid_before": begin, "not_valid_after": end}
    return bytes(serialize_cert(generate_cert(who, who, key, key.public_key(), ca=True, **valid)))


def make_certificate(
    party: str, agreement: Agreement, public: Any, key: bytes, root: bytes, begin: datetime, end: datetime
) -> bytes:
    """The certificate of a party's public key, signed with the authority's key, as PEM."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import NameOID
    from nvflare.lighter.utils import Identity, generate_cert, load_crt_bytes, serialize_cert

    host = {"server_default_host": agreement.address} if party == COORDINATOR else {}
    issuer = Identity(load_crt_bytes(root).subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    signing, valid = load_pem_private_key(key, password=None), {"not_valid_before": begin, "not_valid_after": end}
    return bytes(
        serialize_cert(generate_cert(Identity(party, _ORGANISATION), issuer, signing, public, **host, **valid))
    )


def _file_names(party: str) -> tuple[str, str, str]:
    return f"{_kind(party)}.crt", f"{_kind(party)}.key", "rootCA.pem"


def credentials(kit: Kit) -> Credentials:
    """The paths of a party's credentials in its kit."""
    return Credentials(*(kit.path / _KEYS / name for name in _file_names(kit.party)))


def workspace(kit: Kit) -> Path:
    """The folder of FLARE's process in a kit."""
    return kit.path / "workspace"


def prepare(kit: Kit) -> None:
    """Write FLARE's folder from this package's templates; only the credentials, names and address come from the kit."""
    folder, agreement, kind = workspace(kit), kit.agreement, _kind(kit.party)
    startup, local = folder / "startup", folder / "local"
    files = credentials(kit)
    values = {
        "name": agreement.name,
        "party": kit.party,
        "coordinator": COORDINATOR,
        "sites": len(agreement.sites),
        "port": agreement.port,
        # FLARE listens on loopback alone if this is a loopback address, else on all addresses.
        "target": f"{agreement.address}:{agreement.port}",
        "key": os.path.relpath(files.key, startup),  # the key is not copied
        "certificate": files.certificate.name,
        "root": files.root.name,
        "allowed": _COMPONENTS,
        "component": _COORDINATOR if kit.is_coordinator else _SITE,
        # By default FLARE stores these in the system's temporary folder.
        "snapshots": str(folder / "storage" / "snapshots"),
        "jobs": str(folder / "storage" / "jobs"),
    }
    templates = Environment(loader=PackageLoader(__package__), undefined=StrictUndefined)
    with plain_errors(kit.path):
        if folder.exists():
            shutil.rmtree(folder)
        for each in (startup, local):
            each.mkdir(mode=0o700, parents=True)
        for file in (files.certificate, files.root):
            shutil.copy(file, startup)
        for name, path in (
            (f"fed_{kind}.json", startup / f"fed_{kind}.json"),
            (f"resources_{kind}.json", local / "resources.json"),
            ("authorization.json", local / "authorization.json"),
            ("log_config.json", local / "log_config.json"),
        ):
            path.write_text(templates.get_template(name).render(values), encoding="utf-8")


def _kind(party: str) -> str:
    return "server" if party == COORDINATOR else "client"


def command(kit: Kit) -> list[str]:
    """The arguments to Python that start the party's process."""
    return ["-m", "factorized_fl.silo.transport.flare.process", str(kit.path)]


def program(kit: Kit) -> list[str]:
    """FLARE's own module for this kind of party, and its arguments."""
    kind = _kind(kit.party)
    names = [f"org={_ORGANISATION}", *([] if kit.is_coordinator else [f"uid={kit.party}"])]
    where = ["-m", str(workspace(kit)), "-s", f"fed_{kind}.json"]
    module = f"nvflare.private.fed.app.{kind}.{kind}_train"
    return [module, *where, "--set", "secure_train=true", "config_folder=config", *names]


def refusal(line: str) -> str | None:
    """The reason why a connection was refused, if this line of FLARE's or gRPC's log reports that; else None."""
    if found := _IMPOSTOR.search(line):
        return f"the certificate of {found[1]} was shown under the name {found[2]}"
    return next((reason for words, reason in _REFUSALS.items() if words in line), None)


def environment(kit: Kit) -> Mapping[str, str]:
    """FLARE's limit on the size of a message."""
    return {LIMIT: str(max(kit.agreement.largest, _SMALLEST_LIMIT))}
