"""The clinical metrics of a site's own model, on its test images."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from factorized_fl.core.errors import UserError
from factorized_fl.export.clinical_report import ClinicalReport, clinical_report
from factorized_fl.export.evaluate import check_threshold, evaluate_model, refuse_other_targets, scores_of
from factorized_fl.export.package import read_package
from factorized_fl.results.schema import CONFIG, FEDERATION
from factorized_fl.silo.agreement import Kit, read_kit
from factorized_fl.silo.columns import TableColumns
from factorized_fl.silo.settings import chosen_data
from factorized_fl.silo.site_data import NO_COLUMNS, site_scenario, subgroups_tested


def evaluate_folder(
    path: Path,
    data: Path | None = None,
    threshold: float = 0.5,
    columns: TableColumns = NO_COLUMNS,
) -> ClinicalReport:
    """Return the metrics of an exported model, or of the model of a site's kit.

    Raise UserError for a kit without a model, or for a model without images to test it on.

    Args:
        path: the folder of an exported model, or a site's kit.
        data: images with known classes. For a kit the site's own data by default; only their test part is used.
        threshold: the probability from which an image counts as positive for a class.
        columns: of `data`, if they are a table; those that are not named are the site's own for a kit.
    """
    check_threshold(threshold)
    if (path / FEDERATION).is_file():
        return _evaluate_site(read_kit(path), data, threshold, columns)
    if (path / CONFIG).is_file():
        raise UserError(
            f"'{path}' is a run: export a client's model with `ffl export {path} --client 1`, then test it."
        )
    if data is None:
        raise UserError(f"'{path}' is an exported model: name images to test it on with --data DIR.")
    return evaluate_model(
        *(path, data),
        threshold=threshold,
        image=columns.image,
        label=columns.label or "label",
        split=columns.split,
        subgroups=columns.subgroups,
    )


def _evaluate_site(kit: Kit, data: Path | None, threshold: float, columns: TableColumns) -> ClinicalReport:
    if kit.is_coordinator:
        raise UserError(f"'{kit.path}' is the coordinator's kit, which has no model: evaluate at a site.")
    if not kit.model.is_dir():
        raise UserError(
            f"{kit.party} has no model yet: it is made after the last round, or by `ffl export {kit.path}`."
        )
    place, own = chosen_data(kit, data)
    named = {name: value for name, value in asdict(columns).items() if value}
    columns = replace(own, **named)
    scenario = site_scenario(kit, place, columns)
    package = read_package(kit.model)
    refuse_other_targets(package, kit.model)
    (client,) = scenario.clients
    if client.classes != package.classes:
        raise UserError(
            f"The data of {kit.party} has other classes than its model in '{kit.model}' ({_listed(client.classes)} "
            f"in place of {_listed(package.classes)}): give the data that it was trained on."
        )
    groups = subgroups_tested(place, columns, scenario)
    scores = scores_of(kit.model, scenario.images[client.test])
    return clinical_report(scores, scenario.targets(0, client.test), package.classes, threshold, groups)


def _listed(classes: Sequence[str]) -> str:
    return ", ".join(classes)
