"""The runs with which a run may be compared: its control or a Stand-Alone run, and how their settings differ."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from factorized_fl.config import Config, from_table, upgrade
from factorized_fl.core.errors import UserError
from factorized_fl.results.control import BASELINE, control_of
from factorized_fl.results.effect import CONTROL, Effect, measure_effect
from factorized_fl.results.reading import RunFiles, find_runs, is_run, read_run
from factorized_fl.results.schema import ALONE

# The settings that assign images and labels to clients; runs that differ in any of them cannot be compared.
DATA_SETTINGS = (
    *("dataset", "image_size", "channels", "partition", "alpha", "permuted", "permutation_seed", "partition_seed"),
    *("clients", "clients_per_domain", "images_per_client", "test_images", "scrambled", "train_share", "score"),
)


# -- which runs may be compared


def different_data(runs: Sequence[RunFiles]) -> str | None:
    """Return in words why the runs' clients are not the same; None if they are. Seeds may differ."""
    first = runs[0]
    of_seed: dict[int, RunFiles] = {}
    for other in runs:
        names = f"'{first.path.name}' and '{other.path.name}'"
        ours, theirs = ([(c["domain"], len(c["classes"])) for c in run.clients] for run in (first, other))
        for name in DATA_SETTINGS:
            if name == "clients" and first.party and ours == theirs:
                continue  # a site's configuration counts all sites, that of its Stand-Alone run counts one
            if name in first.config and name in other.config and first.config[name] != other.config[name]:
                return f"{name} is {first.config[name]!r} in one and {other.config[name]!r} in another ({names})"
        if first.metric != other.metric:
            return f"the primary metric is {first.metric} in one and {other.metric} in another ({names})"
        if ours and theirs and ours != theirs and len(first.clients[0]["classes"]) and len(other.clients[0]["classes"]):
            return f"{names} have different clients"
        same = of_seed.setdefault(other.seed, other)
        if different_images(same.clients, other.clients):
            return f"'{same.path.name}' and '{other.path.name}' have different images"
    return None


def different_images(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the marks in two runs' clients.json tell different images; older runs have no marks."""
    marks = ((one.get("images"), other.get("images")) for one, other in zip(ours, theirs, strict=False))
    return any(one and other and one != other for one, other in marks)


def difference_lines(run: RunFiles, base: RunFiles) -> list[str]:
    """Return in words which training settings, besides the method and its options, differ, the base's value first."""
    ignored = {*DATA_SETTINGS, "method", "preset", "seed", "control"}
    if run.party:  # a site's Stand-Alone run has as many rounds as the site trained, not as many as planned
        ignored |= {"rounds", "fraction"}
    # A setting that only one run has came with a later version, whose default is the earlier behaviour.
    both = [name for name in run.config if name in base.config and name not in ignored]
    differing = [name for name in both if run.config[name] != base.config[name]]
    return [f"{name} {base.config[name]!r} instead of {run.config[name]!r}" for name in differing]


# -- the reference


def read_reference(path: Path) -> RunFiles:
    """Return a control or a Stand-Alone run; raise UserError for another run."""
    base = read_run(find_runs([path])[0])
    if base.method != BASELINE and not is_control(base):
        raise UserError(f"The reference '{path}' is a run of {base.title}: give a control, or a run of Stand-Alone.")
    return base


def check_reference(run: RunFiles, base: RunFiles) -> None:
    """Raise UserError if the reference has other clients or another seed than the run."""
    if complaint := different_data([run, base]):
        raise UserError(f"'{base.path}' cannot be the reference of '{run.path}', as {complaint}.")
    if base.seed != run.seed and "seed" in base.config:
        raise UserError(f"'{base.path}' cannot be the reference of '{run.path}': their seeds differ.")


def judge_run(path: Path, reference: Path) -> Effect:
    """Return the gain of a run over a control or Stand-Alone run; raise UserError if they cannot be compared."""
    ours, theirs = read_run(path, strict=True), read_reference(reference)
    check_reference(ours, theirs)
    for run in (ours, theirs):
        if run.summary is None:
            raise UserError(f"'{run.path}' is not complete: let it finish first.")
    if lines := difference_lines(ours, theirs):
        raise UserError(f"'{reference}' was trained differently ({', '.join(lines)}): compare equal settings.")
    effect = measure_effect([ours], [theirs], reference_name(theirs))
    if effect is None:
        raise UserError(f"No client was tested in both '{path}' and '{reference}': choose a smaller dropout.")
    return effect


def reference_name(run: RunFiles) -> str:
    """Return the name that an effect has for this reference."""
    return CONTROL if is_control(run) else run.method


def find_baseline(run: RunFiles, runs: Sequence[RunFiles], given: RunFiles | None = None) -> RunFiles | None:
    """Return the given baseline, or a complete Stand-Alone run of the same clients among the runs or beside the run."""
    if run.method == BASELINE or is_control(run):
        return None
    if given:
        check_reference(run, given)
        return given
    found = [other for other in runs if other.method == BASELINE and other.seed == run.seed and not is_control(other)]
    beside = run.path.resolve().parent / (ALONE if run.party else f"{BASELINE}-seed{run.seed}")
    if not found and is_run(beside):
        found = [read_run(beside)]
    fitting = [other for other in found if other.complete and not different_data([run, other])]
    return min(fitting, key=lambda other: len(difference_lines(run, other)), default=None)


# -- the control


def _config_of(run: RunFiles) -> Config | None:
    """Return a run's configuration without its preset; None if it is incomplete or of a method that is not loaded."""
    try:
        return from_table({**upgrade({**run.config, "options": run.options}), "preset": ""})
    except UserError:
        return None


def is_control(run: RunFiles) -> bool:
    """Return whether each client of the run aggregates with itself alone."""
    return bool(run.config.get("control"))


def find_control(run: RunFiles, runs: Sequence[RunFiles]) -> RunFiles | None:
    """Return the complete control of a run among other runs or beside the run; None for a run that needs none."""
    config = _config_of(run)
    wanted = config and control_of(config)
    if wanted is None or wanted == config:
        return None
    beside = run.path.resolve().parent
    near = [*beside.glob(f"*-{CONTROL}-seed{run.seed}"), beside / f"{BASELINE}-seed{run.seed}"]
    known = {other.path.resolve() for other in runs}
    for other in (*runs, *(read_run(path) for path in near if is_run(path) and path.resolve() not in known)):
        if other.complete and _config_of(other) == wanted and not different_data([run, other]):
            return other
    return None


def effect_beside(run: RunFiles) -> Effect | None:
    """Return the gain of a run, and of complete runs beside it with other seeds, over their controls; None without."""
    config = _config_of(run)
    if config is None or not run.complete:
        return None
    found: dict[int, tuple[RunFiles, RunFiles]] = {}
    for path in [run.path, *sorted(run.path.resolve().parent.iterdir())]:
        if not is_run(path):
            continue
        other = read_run(path)
        same = _config_of(other)
        fits = same and other.complete and other.seed not in found and replace(same, seed=run.seed) == config
        if fits and (control := find_control(other, [])):
            found[other.seed] = other, control
    if run.seed not in found:
        return None
    runs, controls = zip(*(found[seed] for seed in sorted(found)), strict=True)
    return measure_effect(runs, controls, CONTROL)
