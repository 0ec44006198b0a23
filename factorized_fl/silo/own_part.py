"""A site's own part: its federation of one client, and its state on disk."""

import json
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.data.scenarios import Scenario
from factorized_fl.protect.budget import Budget
from factorized_fl.results.rundir import RunDirectory, describe_clients
from factorized_fl.silo.agreement import NOISE_SEED, SPENDING, Kit, read_json
from factorized_fl.silo.checksum import read_checked
from factorized_fl.silo.pinned import check_model
from factorized_fl.simulate.build import Federation, build_federation


def site_federation(
    kit: Kit, scenario: Scenario, device: str = "cpu", engine: str = "reference", noise_seed: int = 0
) -> Federation:
    """The site as a federation of one client at its start.

    Raises UserError if its data changed since it trained, or if its installed network is not that of the agreement.
    """
    check_model(kit)
    federation = build_federation(kit.config, scenario, torch.device(device), engine, noise_seed, simulated=False)
    RunDirectory(kit.run).refuse_other_data(describe_clients(federation.scenario))
    if federation.budget is not None:
        federation.budget.remember = partial(_write_spending, kit, federation.budget)
        _recall_spending(kit, federation)
    return federation


def _write_spending(kit: Kit, budget: Budget) -> None:
    """Stores the spent budget before the site trains: abandoned or lost training counts as well."""
    spent = {"taken": int(budget.taken[0]), "noise": float(budget.noise[0])}
    write_atomically(kit.path / SPENDING, json.dumps(spent).encode())


def _recall_spending(kit: Kit, federation: Federation) -> None:
    """Adds the steps that the site took after its checkpoint; the noise is the one that the site began with."""
    budget = federation.budget
    if budget is None or not (kit.path / SPENDING).exists():
        return
    found = read_json(kit.path / SPENDING, dict)
    if found is None or not {"taken", "noise"} <= found.keys():
        raise UserError(f"'{kit.path / SPENDING}' is damaged, so the spent budget is unknown: restore it from a copy.")
    budget.taken.clamp_(min=int(found["taken"]))
    budget.noise.fill_(float(found["noise"]))


def noise_seed_of(kit: Kit) -> int:
    """The site's private seed of noise, drawn once: noise drawn again could be averaged out."""
    path = kit.path / NOISE_SEED
    if not path.exists():
        write_atomically(path, str(secrets.randbits(256)).encode())
        path.chmod(0o600)
    try:
        return int(path.read_text(encoding="ascii"))
    except ValueError:
        raise UserError(f"'{path}' is damaged: restore its number, or take a new kit.") from None


def restore(kit: Kit, federation: Federation, log: Callable[[str], None]) -> int:
    """Loads the last complete round on disk, or the one before it; returns its number, 0 if there is none."""
    directory = RunDirectory(kit.run)
    for path in filter(Path.exists, (directory.checkpoint_path, directory.previous_path)):
        try:
            round_number, tensors, ours = read_checked(path, kit.agreement.id)
            if not ours:
                raise UserError(f"'{path}' belongs to another federation: give this one a kit of its own.")
            federation.load(tensors)
            _recall_spending(kit, federation)
            return round_number
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
            log(f"{path.name} is damaged ({error}): trying the round before")
    return 0
