"""One kit per party: a key, certificates, the agreement, a README in plain words; and FLARE's workspace made of it.

FLARE's provisioning makes keys and certificates. A kit comes from somebody else, so nothing in it says what code runs:
a party that starts lets its own installation write FLARE's configuration and policies anew. No administrator has any
right, no job may be submitted, no process launcher is installed, what a configuration may build is this package's own,
and a site streams no log to the coordinator.
"""

import contextlib
import io
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.methods import METHODS
from factorized_fl.silo.checks import largest_message
from factorized_fl.silo.plan import AUTHORITY, COORDINATOR, FEDERATION, Kit, Plan, read_plan, write_kit
from factorized_fl.simulate.build import initial_model

_OWN = "factorized_fl.silo.transport.flare"
_RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands", "byoc")
_ROLES = ("project_admin", "org_admin", "lead", "member")
_GATEWAY, _AGENT = f"{_OWN}.Gateway", f"{_OWN}.Agent"
_SERVER_PARTS = ("job_scheduler", "job_manager", "job_store")
_CLIENT_PARTS = ("resource_manager", "resource_consumer")
# What may be built in a FLARE process: nothing of FLARE's own library, nothing that a job brings.
ALLOWED = [_OWN]


def make_kits(sites: Path, out: Path) -> Plan:
    """Make all kits of a federation in a new folder; each goes to its party, the authority's stays with the maker."""
    plan, config = read_plan(sites)
    plan = with_size(plan, config)
    with plain_errors(out):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"'{out}' is there already: choose another folder with --out.")
    with plain_errors(out), tempfile.TemporaryDirectory() as scratch:
        provisioned = provision(plan, Path(scratch))
        out.mkdir(parents=True, exist_ok=True)
        out.chmod(0o700)
        for party in (COORDINATOR, *plan.sites):
            kit = out / party
            kit.mkdir(mode=0o700)
            keys = kit / "flare" / "startup"
            keys.mkdir(parents=True)
            for name in key_files(party):
                shutil.copy(provisioned / party / "startup" / name, keys)
            write_atomically(kit / FEDERATION, write_kit(kit, party, plan, config).encode())
            write_atomically(kit / "README.md", readme(party, plan, config).encode())
        authority = out / AUTHORITY
        shutil.copytree(provisioned.parent / "state", authority)
        write_atomically(authority / "README.md", _AUTHORITY.encode())
        for folder, _, files in os.walk(out):
            os.chmod(folder, 0o700)
            for file in files:
                os.chmod(Path(folder) / file, 0o600)
    return plan


def key_files(party: str) -> tuple[str, str, str]:
    """The names of a party's certificate, its private key, and the authority's certificate."""
    kind = "server" if party == COORDINATOR else "client"
    return f"{kind}.crt", f"{kind}.key", "rootCA.pem"


def with_size(plan: Plan, config: Config) -> Plan:
    """The plan with the size that no honest message exceeds: a whole model, and a little."""
    model = initial_model(config, 2, config.channels, labels_agree=False)
    return replace(plan, largest=largest_message(model.state_dict()))


def provision(plan: Plan, folder: Path, administrator: str | None = None) -> Path:
    """Let FLARE make keys and certificates; returns the folder that holds one folder per party."""
    try:
        from nvflare.lighter.prov_utils import prepare_builders
        from nvflare.lighter.provision import prepare_project
        from nvflare.lighter.provisioner import Provisioner
    except ImportError:
        raise UserError('Federations between organisations need FLARE: pip install "factorized-fl[network]".') from None
    parties: list[dict[str, Any]] = [
        {
            "name": COORDINATOR,
            "type": "server",
            "org": COORDINATOR,
            "fed_learn_port": plan.port,
            "default_host": plan.address,
        },
        *({"name": site, "type": "client", "org": site} for site in plan.sites),
    ]
    if administrator:
        parties.append({"name": administrator, "type": "admin", "org": COORDINATOR, "role": "project_admin"})
    project = {
        "api_version": 3,
        "name": plan.name,
        "description": "",
        "participants": parties,
        "builders": [
            {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder"},
            {
                "path": "nvflare.lighter.impl.static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": "grpc"},
            },
            {"path": "nvflare.lighter.impl.cert.CertBuilder"},
            {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
        ],
    }
    with contextlib.redirect_stdout(io.StringIO()):  # it tells of a folder that will be gone
        Provisioner(str(folder), prepare_builders(project)).provision(prepare_project(project))
    return folder / plan.name / "prod_00"


def make_workspace(kit: Kit) -> None:
    """FLARE's folder, written anew by what is installed here; of the kit it has keys, certificates, names and address.

    So a kit that somebody changed, or made with another version, runs what an unchanged one would.
    """
    with plain_errors(kit.path), tempfile.TemporaryDirectory() as scratch:
        provisioned = provision(kit.plan, Path(scratch)) / kit.party
        if kit.workspace.exists():
            shutil.rmtree(kit.workspace)
        for name in ("startup", "local"):
            (kit.workspace / name).mkdir(mode=0o700, parents=True)
        certificate, key, root = key_files(kit.party)
        for name in (certificate, root):
            shutil.copy(kit.keys / name, kit.workspace / "startup")
        _configure(kit, provisioned, key)


def _configure(kit: Kit, provisioned: Path, key: str) -> None:
    """FLARE's configuration of one party, tightened."""
    startup, local = kit.workspace / "startup", kit.workspace / "local"
    resources = json.loads((provisioned / "local" / "resources.json.default").read_text())
    keep = _SERVER_PARTS if kit.is_coordinator else _CLIENT_PARTS
    components = [part for part in resources["components"] if part["id"] in keep]
    component = _GATEWAY if kit.is_coordinator else _AGENT
    resources |= {
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": ALLOWED,
        "allow_log_streaming": False,
        "components": [*components, {"id": "ffl", "path": component, "args": {"kit": ".."}}],
    }
    config = f"fed_{'server' if kit.is_coordinator else 'client'}.json"
    content = json.loads((provisioned / "startup" / config).read_text())
    if kit.is_coordinator:
        resources["servers"][0]["max_num_clients"] = len(kit.plan.sites)
        _store_inside(resources, kit.workspace / "storage")
        # FLARE listens on loopback alone if this is a loopback address, else on all.
        content["servers"][0]["service"]["target"] = f"{kit.plan.address}:{kit.plan.port}"
    own = content["servers"][0] if kit.is_coordinator else content["client"]
    own["ssl_private_key"] = os.path.relpath(kit.keys / key, startup)  # there is no second copy of it
    (startup / config).write_text(json.dumps(content, indent=2))
    (local / "resources.json").write_text(json.dumps(resources, indent=2))
    nothing = {role: dict.fromkeys(_RIGHTS, "none") for role in _ROLES}
    policy = {"format_version": "1.0", "permissions": nothing}
    (local / "authorization.json").write_text(json.dumps(policy, indent=2))
    shutil.copy(provisioned / "local" / "log_config.json.default", local / "log_config.json")


def _store_inside(resources: dict[str, Any], storage: Path) -> None:
    """FLARE's server wants whole paths, and would use the system's temporary folder."""
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
    for part in resources["components"]:
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = str(storage / "jobs")


def readme(party: str, plan: Plan, config: Config) -> str:
    """What a party finds in its kit."""
    method = METHODS[config.method].card.title
    what = (
        f"This is the kit of **{party}** in the federation *{plan.name}*: {len(plan.sites)} sites train with "
        f"{method}, {config.rounds} rounds of {config.epochs} epochs, on images of {config.image_size} pixels."
    )
    travels = METHODS[config.method].card.row[2]
    if config.build_method().looks_at_images:  # then this is what clients are matched by
        travels = f"{travels.partition(';')[0]}; a fingerprint of the images, averages of what the first layer sees"
    if party == COORDINATOR:
        return f"""# {plan.name}: coordinator

{what}

    pip install "factorized-fl[network]"
    ffl serve .                    # or, in the background: ffl federation start .
    ffl federation status .
    ffl report .                   # a page: who was given whose tensors, bytes, what sites chose to report

Port {plan.port} of {plan.address} must be reachable from the sites; nothing else. You will see the sites' names, how
many training images each has, and the tensors that travel ({travels}). You will not see images,
labels, class names, nor accuracies unless a site chooses to report them. A round ends when all sites have answered, or
after {plan.deadline:g} s with at least {plan.needed} answers. Everything is in `run/`; after a crash or a reboot start
again and it goes on.

`flare/startup/server.key` is your private key: keep this folder to yourself.
"""
    return f"""# {plan.name}: {party}

{what}

    pip install "factorized-fl[network,onnx]"
    ffl data inspect IMAGES        # one folder per class, or parquet; look before you join
    ffl join . --data IMAGES       # or, in the background: ffl federation start . --data IMAGES
    ffl federation status .
    ffl report .                   # a page for you alone: did the federation help, what is taken for what

You connect outwards to {plan.address}:{plan.port}; nobody connects to you, and nobody can run code here but the code
you installed. What leaves: of your model {travels}; and how many training images you have. What
never leaves: images, labels, class names, your classifier; accuracies only with `--report-accuracy`.

At the end your model is in `model/`, with its accuracy beside that of a model trained on your images alone. After a
crash or a reboot join again and it goes on.

`flare/startup/client.key` is your private key: keep this folder to yourself.
"""


_AUTHORITY = """# Authority

`cert.json` holds the key that signs the certificates of this federation. No party needs it. Keep it where nobody
reaches it, to add a site later, or delete it.
"""
