"""Keys and certificates for all parties, FLARE's configuration at every start, and the process that runs FLARE.

FLARE's provisioning makes keys and certificates. A kit comes from another party, so nothing in it decides which code
runs: at every start the installed package writes FLARE's configuration and policies. No administrator has any right, no
job may be submitted, no process launcher is installed, only classes of this package may be built, and a site streams no
log to the coordinator.
"""

import contextlib
import importlib.util
import io
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors
from factorized_fl.silo.agreement import AUTHORITY, COORDINATOR, Agreement, Kit
from factorized_fl.silo.transport import Credentials

LIMIT = "NVFLARE_STREAMING_MAX_BLOB_SIZE"  # the variable with FLARE's limit on the bytes of a message
VERSIONS = "nvflare>=2.9,<2.10"
_KEYS = Path("flare") / "startup"  # in a kit
_SMALLEST_LIMIT = 1_000_000
_COMPONENTS = "factorized_fl.silo.transport.flare.components"
_COORDINATOR, _SITE = f"{_COMPONENTS}.CoordinatorComponent", f"{_COMPONENTS}.SiteComponent"
_RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands", "byoc")
_ROLES = ("project_admin", "org_admin", "lead", "member")


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

    server = {"name": COORDINATOR, "type": "server", "org": COORDINATOR}
    parties: list[dict[str, Any]] = [
        server | {"fed_learn_port": agreement.port, "default_host": agreement.address},
        *({"name": site, "type": "client", "org": site} for site in agreement.sites),
    ]
    if administrator:
        parties.append({"name": administrator, "type": "admin", "org": COORDINATOR, "role": "project_admin"})
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


def _file_names(party: str) -> tuple[str, str, str]:
    kind = "server" if party == COORDINATOR else "client"
    return f"{kind}.crt", f"{kind}.key", "rootCA.pem"


def credentials(kit: Kit) -> Credentials:
    """The paths of a party's credentials in its kit."""
    return Credentials(*(kit.path / _KEYS / name for name in _file_names(kit.party)))


def workspace(kit: Kit) -> Path:
    """The folder of FLARE's process in a kit."""
    return kit.path / "workspace"


def prepare(kit: Kit) -> None:
    """Write FLARE's folder. Only the credentials, the names and the address come from the kit.

    Therefore a kit that was changed, or made with another version, runs the same code as an unchanged one.
    """
    folder = workspace(kit)
    certificate, key, root = credentials(kit)
    with plain_errors(kit.path):
        if folder.exists():
            shutil.rmtree(folder)
        startup, local = folder / "startup", folder / "local"
        for each in (startup, local):
            each.mkdir(mode=0o700, parents=True)
        for file in (certificate, root):
            shutil.copy(file, startup)
        security = {
            "ssl_private_key": os.path.relpath(key, startup),  # the key is not copied
            "ssl_cert": certificate.name,
            "ssl_root_cert": root.name,
            "connection_security": "mtls",
        }
        _write(startup / _startup_file(kit), _startup(kit, security))
        _write(local / "resources.json", _resources(kit, folder / "storage"))
        rights = {role: dict.fromkeys(_RIGHTS, "none") for role in _ROLES}
        _write(local / "authorization.json", {"format_version": "1.0", "permissions": rights})
        _write(local / "log_config.json", _LOGGING)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


def _startup_file(kit: Kit) -> str:
    return "fed_server.json" if kit.is_coordinator else "fed_client.json"


def _startup(kit: Kit, security: Mapping[str, str]) -> dict[str, Any]:
    """The address of the coordinator and the party's own credentials."""
    # FLARE listens on loopback alone if this is a loopback address, else on all addresses.
    target = {"target": f"{kit.agreement.address}:{kit.agreement.port}", "scheme": "grpc"}
    server: dict[str, Any] = {"name": kit.agreement.name, "service": target}
    if kit.is_coordinator:
        own = {"admin_server": COORDINATOR, "admin_port": kit.agreement.port, **security}
        return {"format_version": 2, "servers": [server | own]}
    client = {"fqsn": kit.party, "is_leaf": True, **security}
    return {"format_version": 2, "servers": [server | {"identity": COORDINATOR}], "client": client}


def _resources(kit: Kit, storage: Path) -> dict[str, Any]:
    """The components that FLARE builds. Those of its own are the ones without which it does not start."""
    components = _server_components(storage) if kit.is_coordinator else _CLIENT_COMPONENTS
    own = {"id": "ffl", "path": _COORDINATOR if kit.is_coordinator else _SITE, "args": {"kit": ".."}}
    resources: dict[str, Any] = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [_COMPONENTS],
        "allow_log_streaming": False,
        "components": [*components, own],
    }
    if not kit.is_coordinator:
        return resources | {"client": {"retry_timeout": 30, "compression": "Gzip"}}
    server = {
        "admin_storage": "transfer",
        "max_num_clients": len(kit.agreement.sites),
        "heart_beat_timeout": 600,
        "download_job_url": "http://download.server.com/",
        "admin_timeout": 10.0,
    }
    # By default FLARE stores snapshots and jobs in the system's temporary folder.
    files = {"path": _STORAGE, "args": {"root_dir": str(storage / "snapshots"), "uri_root": "/"}}
    snapshots = {
        "path": "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
        "args": {"uri_root": "/", "storage": files},
    }
    return resources | {"servers": [server], "snapshot_persistor": snapshots}


_STORAGE = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"


def _server_components(storage: Path) -> list[dict[str, Any]]:
    jobs = {"uri_root": str(storage / "jobs"), "job_store_id": "job_store"}
    scheduler = "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler"
    return [
        {"id": "job_scheduler", "path": scheduler, "args": {"max_jobs": 1}},
        {"id": "job_manager", "path": "nvflare.apis.impl.job_def_manager.SimpleJobDefManager", "args": jobs},
        {"id": "job_store", "path": _STORAGE},
    ]


_CLIENT_COMPONENTS = [
    {
        "id": "resource_manager",
        "path": "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager",
        "args": {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0, "expiration_period": 300},
    },
    {
        "id": "resource_consumer",
        "path": "nvflare.app_common.resource_consumers.gpu_resource_consumer.GPUResourceConsumer",
        "args": {},
    },
]
_LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s - %(name)s - %(levelname)s - %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain", "stream": "ext://sys.stdout"}},
    "loggers": {"root": {"level": "INFO", "handlers": ["console"]}},
}


def command(kit: Kit) -> list[str]:
    """The arguments to Python that start the party's process."""
    return ["-m", "factorized_fl.silo.transport.flare.process", str(kit.path)]


def program(kit: Kit) -> list[str]:
    """FLARE's own module for this kind of party, and its arguments."""
    kind = "server" if kit.is_coordinator else "client"
    names = [f"org={kit.party}", *([] if kit.is_coordinator else [f"uid={kit.party}"])]
    where = ["-m", str(workspace(kit)), "-s", _startup_file(kit)]
    module = f"nvflare.private.fed.app.{kind}.{kind}_train"
    return [module, *where, "--set", "secure_train=true", "config_folder=config", *names]


def environment(kit: Kit) -> Mapping[str, str]:
    """FLARE's limit on the size of a message."""
    return {LIMIT: str(max(kit.agreement.largest, _SMALLEST_LIMIT))}
