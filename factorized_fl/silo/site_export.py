"""The models that a site exports: that of the federation, and that of its control."""

import warnings
from pathlib import Path

import torch

from factorized_fl.core.errors import UserError
from factorized_fl.data.scenarios import Scenario
from factorized_fl.export.export import Exported, export_client
from factorized_fl.results.effect import Effect, measure_effect
from factorized_fl.results.reading import read_run
from factorized_fl.results.references import reference_name
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.columns import TableColumns
from factorized_fl.silo.own_part import restore, site_federation
from factorized_fl.silo.pinned import check_model
from factorized_fl.silo.sharing import shared_with
from factorized_fl.silo.site_data import NO_COLUMNS, site_scenario, subgroups_tested
from factorized_fl.simulate.build import build_federation


def export_now(kit: Kit, data: Path, out: Path | None = None, columns: TableColumns = NO_COLUMNS) -> Exported:
    """Exports a site's model after its last round, without disturbing running processes."""
    scenario = site_scenario(kit, data, columns)
    federation = site_federation(kit, scenario)
    rounds = restore(kit, federation, lambda line: warnings.warn(line, stacklevel=2))
    directory = RunDirectory(kit.run)
    if not rounds:
        damaged = directory.checkpoint_path.exists()
        found = "its checkpoints are damaged" if damaged else "it has trained no round yet"
        raise UserError(f"{kit.party} has no model to export: {found}.")
    ended = directory.summary() is not None
    effect = effect_over_alone(kit) if ended else None
    count = directory.rounds_trained(0, rounds)
    told = shared_with(directory.timing(), kit.party).words
    groups, place = subgroups_tested(data, columns, scenario), out or kit.model
    return export_client(
        *(federation, 0, rounds, count, place, kit.party, effect), shared=told, subgroups=groups, window=columns.window
    )


def effect_over_alone(kit: Kit) -> Effect | None:
    """Returns the gain of the site's model over the one that it trained without the federation; None without one."""
    ours, alone = RunDirectory(kit.run), RunDirectory(kit.alone)
    if ours.summary() is None or not kit.alone.exists() or alone.summary() is None:
        return None
    reference = read_run(kit.alone)
    return measure_effect([read_run(kit.run)], [reference], reference_name(reference))


def export_control(kit: Kit, scenario: Scenario, out: Path, window: str = "") -> Exported:
    """Exports the site's control, the model that it trained without the other sites; raises UserError without one."""
    directory = RunDirectory(kit.alone)
    if not kit.alone.exists() or directory.summary() is None:
        raise UserError(f"{kit.party} has no complete control: it is trained at the end, unless --no-alone is set.")
    check_model(kit)
    config = directory.config()
    federation = build_federation(config, scenario, torch.device("cpu"), "reference")
    with directory.reading_checkpoint():
        federation.load(directory.load_checkpoint())
    return export_client(federation, 0, config.rounds, config.rounds, out, kit.party, window=window)
