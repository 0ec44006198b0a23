"""The data of a site as a scenario of one client: local images, or a table of images, vectors, series or token ids."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from factorized_fl.core.errors import UserError
from factorized_fl.core.shapes import input_kind
from factorized_fl.data.clients import own_scenario
from factorized_fl.data.columns import read_columns, words_of
from factorized_fl.data.local_images import read_local_images
from factorized_fl.data.scenarios import Scenario, build_scenario
from factorized_fl.data.sources import normalisation
from factorized_fl.data.tables import from_file, splits_of
from factorized_fl.data.windows import windowing
from factorized_fl.export.clinical_report import check_subgroups
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.columns import TableColumns

NO_COLUMNS = TableColumns()
_TABLES = (".csv", ".npz", ".parquet")


def site_scenario(kit: Kit, data: Path, columns: TableColumns = NO_COLUMNS) -> Scenario:
    """Return a site's own data, split by the federation's seed unless it is split.

    Its labels are never assumed to agree with those of other sites. Raise UserError if the data cannot be used, or are
    not of the kind that the agreement names.
    """
    with windowing(columns.window):
        scenario = _scenario(kit, data, columns)
    (client,) = scenario.clients
    if not len(client.test):
        raise UserError(f"{data} has no test examples: without any, there is no verdict on whether federation helps.")
    subgroups_tested(data, columns, scenario)  # a mistake is reported now, and not after the last round
    own = replace(client, name=kit.party, domain=kit.party, seat=kit.seat)
    return replace(scenario, clients=(own,), labels_agree=False)


def subgroups_tested(data: Path, columns: TableColumns, scenario: Scenario) -> dict[str, list[str]]:
    """Return by column of subgroups the value of each test example of a site; raise UserError for a missing value."""
    if not columns.subgroups:
        return {}
    table, (client,) = read_columns(data), scenario.clients
    rows = np.arange(table.rows)
    if columns.split and not columns.image:  # vectors are ordered by their parts, images as in the table
        rows = np.argsort(splits_of(table, columns.split), kind="stable")
    found = {name: words_of(table, name)[rows[client.test.numpy()]].tolist() for name in columns.subgroups}
    return check_subgroups(found)


def _scenario(kit: Kit, data: Path, columns: TableColumns) -> Scenario:
    if _is_table(kit, data, columns):
        return _table(kit, data, columns)
    config = kit.config
    images = read_local_images(data, kit.party, size=config.image_size, channels=config.channels)
    scaling = normalisation("folder", config.channels)
    return build_scenario([images], scaling, clients=1, train_share=config.train_share, seed=config.seed)


def _is_table(kit: Kit, data: Path, columns: TableColumns) -> bool:
    """Return whether the data are a table; local images may be one parquet file whose columns have their usual names.

    Raise UserError if the federation trains on arrays, or columns are named, and the data are a folder.
    """
    if data.is_dir():
        if kit.config.inputs:
            raise UserError(
                f"{kit.agreement.name} trains on inputs {kit.config.inputs}, but '{data}' is a folder: give a table "
                f"({', '.join(_TABLES)})."
            )
        if columns.given:
            raise UserError(f"'{data}' is a folder, which has no columns: name none, or give a table.")
        return False
    return data.suffix.lower() in (".csv", ".npz") or columns.given or bool(kit.config.inputs)


def _table(kit: Kit, data: Path, columns: TableColumns) -> Scenario:
    """Return the scenario of a table."""
    config, image = kit.config, columns.image
    features = columns.features or (() if image else kit.agreement.features)
    if bool(image) == bool(features):
        raise UserError(
            f"'{data}' is a table: name its column of images with --image, or its columns of numbers with --feature."
        )
    found = from_file(
        data,
        label=columns.label or "label",
        image=image or None,
        features=features,
        split=columns.split or None,
        group=columns.group or None,
        size=config.image_size or None,
        channels=config.channels or 3,
    )
    named = [replace(client, name=kit.party) for client in found]
    scenario = own_scenario(named, train_share=config.train_share, seed=config.seed, seat=kit.seat)
    _check_kind(kit, scenario)
    if scenario.labels.is_floating_point():
        raise UserError(
            f"The labels of {kit.party} are numbers to predict, which only simulations support: name a column of "
            "classes with --label."
        )
    return scenario


def _check_kind(kit: Kit, scenario: Scenario) -> None:
    """Raise UserError unless the inputs have the type and the shape of the agreement."""
    config, inputs = kit.config, scenario.images
    kind = str(inputs.dtype).removeprefix("torch.")
    if config.inputs:
        wanted = input_kind(config.inputs)
        expected, there = (wanted.dtype, wanted.shape), str(wanted)
    else:
        shape = (config.channels, config.image_size, config.image_size)
        expected, there = ("uint8", shape), f"images of {' x '.join(map(str, shape))}"
    if (kind, tuple(inputs.shape[1:])) != expected:
        ours = f"{kind} {'x'.join(map(str, inputs.shape[1:]))}"
        raise UserError(
            f"The inputs of {kit.party} are {ours} each, but {kit.agreement.name} trains on {there}: name other "
            "columns, or bring the table into that form."
        )
