"""From records of runs to results/mini/grid.json, tuning.json and options.json."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from factorized_fl.config import resolve
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.presets import find_preset
from factorized_fl.results.control import BASELINE, control_of
from factorized_fl.results.effect import CONTROL, Effect, effect_between
from factorized_fl.results.rundir import Record
from factorized_fl.results.statistic import Estimate, compare_paired, holm, paired_from_counts
from studies.mini.cells import OPTIONS_RATE, PRESET, SAME_RATE
from studies.mini.records import KIND, Row, Run, flat, read_runs, row_name
from studies.runner import layout

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "mini"

ALONE: Row = (BASELINE, False, "none")
FACTORISED_ALONE: Row = ("factorized-fl-beta", True, "none")  # of all methods that factorise weights
FEDAVG: Row = ("fedavg", False, "none")
GROUPS: Row = ("fedavg", False, "groups")
BETA: Row = ("factorized-fl-beta", False, "none")
ORIGINAL: Row = ("factorized-fl", False, "none")
PEERS: Row = ("factorized-peers", False, "none")

# For each question the comparisons that answer it: a row and the row that it is compared with.
QUESTIONS: Mapping[str, Sequence[tuple[Row, Row]]] = {
    "Does aggregation help?": (
        (FEDAVG, ALONE),
        (ORIGINAL, FACTORISED_ALONE),
        (BETA, FACTORISED_ALONE),
        (PEERS, FACTORISED_ALONE),
    ),
    "Does matching help?": ((GROUPS, FEDAVG), (PEERS, BETA)),
    "Does factorisation help beyond grouping?": ((FACTORISED_ALONE, ALONE), (PEERS, GROUPS)),
}

Runs = Mapping[int, Run]  # by seed


def write_grid(folders: Sequence[Path], out: Path = RESULTS / "grid.json") -> None:
    """Write the scores of the runs in some folders, what each row gains, and the answers to the questions."""
    runs = [run for run in read_runs(folders) if run.config.preset == PRESET]
    rows: dict[Row, dict[int, Run]] = {}
    for run in runs:
        rows.setdefault(run.row, {}).setdefault(run.seed, run)
    effects = {
        question: [_answer(rows[one], rows[other]) for one, other in pairs if rows.get(one) and rows.get(other)]
        for question, pairs in QUESTIONS.items()
    }
    gains = {row_name(row): _gains(of_row, rows.get(ALONE, {}), runs) for row, of_row in rows.items()}
    _write(out, {"preset": PRESET, "questions": effects, "gains": gains, "runs": [_record(run) for run in runs]})


def _gains(of_row: Runs, alone: Runs, runs: Sequence[Run]) -> Record:
    """Return what a row gains over its control and over Stand-Alone, as far as these were run."""
    controls = {
        seed: control
        for seed, run in of_row.items()
        if not run.config.control and (wanted := control_of(run.config)) != run.config
        for control in runs
        if control.canonical == wanted
    }
    found = {"control": _effect(of_row, controls, CONTROL), BASELINE: _effect(of_row, alone, BASELINE)}
    return {name: _numbers(effect) for name, effect in found.items() if effect is not None}


def _effect(ours: Runs, theirs: Runs, name: str) -> Effect | None:
    seeds = [seed for seed in sorted(ours.keys() & theirs.keys()) if ours[seed] is not theirs[seed]]
    return effect_between([ours[seed].tests for seed in seeds], [theirs[seed].tests for seed in seeds], name)


def _numbers(effect: Effect) -> Record:
    counts = {word: effect.number(word) for word in ("helped", "harmed", "undecided")}
    return {"seeds": effect.seeds, "mean": effect.mean, "low": effect.low, "high": effect.high, **counts}


def _answer(ours: Runs, theirs: Runs) -> Record:
    seeds = sorted(ours.keys() & theirs.keys())
    names = [row_name(next(iter(runs.values())).row) for runs in (ours, theirs)]
    effect = _effect(ours, theirs, names[1])
    assert effect is not None, names
    plain = fmean(ours[seed].mean("plain", "test") - theirs[seed].mean("plain", "test") for seed in seeds)
    return {"row": names[0], "over": names[1], **_numbers(effect), "seeds": seeds, "plain": plain}


def _record(run: Run) -> Record:
    """Return the origin, the traffic and the scores of a run of the grid."""
    summary = run.record["summary"]
    return run.origin() | {
        "bytes": {way: summary[f"{way}_bytes"] for way in ("up", "down")},
        "scores": summary["score_means"],
        "clients": [_by_client(client) for client in summary["clients"]],
    }


def _by_client(client: Record) -> Record:
    """Return the number of right answers of a client, by kind of statistics and part of the images."""
    return {
        "client": client["client"] + 1,
        "domain": client["domain"],
        **{
            f"{kind} {part}": score["correct"]
            for kind, parts in client["scores"].items()
            for part, score in parts.items()
        },
    }


def write_tuning(folders: Sequence[Path], out: Path = RESULTS / "tuning.json") -> None:
    """Write the accuracy on validation images with each learning rate, and the best rate of each method."""
    runs = [run for run in read_runs(folders) if run.seed == 1]
    best: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.mean(KIND, "validation")):
        best[run.config.method] = run
    chosen = {method: run.config.lr for method, run in best.items()}
    chosen |= {method: chosen[of] for method, of in SAME_RATE.items() if of in chosen}
    records = [run.origin() | {"validation": round(run.mean(KIND, "validation"), 5)} for run in runs]
    profile = {method: {"lr": rate} for method, rate in sorted(chosen.items())}
    _write(out, {"preset": PRESET, "profile": profile, "runs": records})


def write_options(folders: Sequence[Path], out: Path = RESULTS / "options.json") -> None:
    """Write the accuracy on validation images with each choice of Factorized-FL's options, and the differences.

    A difference is that from the defaults with the same seeds; p-values are adjusted by Holm for all choices.
    """
    usual = flat(resolve(find_preset(PRESET), "factorized-fl", {"lr": OPTIONS_RATE}))
    runs = read_runs(folders)
    choices: dict[str, dict[int, Run]] = {}
    for run in runs:
        own = {k: v for k, v in flat(run.config).items() if usual[k] != v and k != "seed"}
        choices.setdefault(json.dumps(own, sort_keys=True), {})[run.seed] = run
    if (defaults := choices.get("{}")) is None:
        raise UserError("The folders hold no run with the defaults of Factorized-FL: run `python -m studies.mini run`.")
    estimates = {key: _on_validation(of, defaults) for key, of in choices.items() if key != "{}"}
    adjusted = holm({key: estimate.p for key, estimate in estimates.items() if estimate})
    records = []
    for key, of_choice in choices.items():
        of_seeds = {
            part: [round(of_choice[seed].mean(KIND, part), 5) for seed in sorted(of_choice)]
            for part in ("validation", "test")
        }
        record: Record = {"settings": json.loads(key), "seeds": sorted(of_choice), **of_seeds}
        if estimate := estimates.get(key):
            record |= {"mean": estimate.value, "low": estimate.low, "high": estimate.high, "p": adjusted[key]}
        records.append(record)
    records.sort(key=lambda record: -fmean(record["validation"]))
    _write(out, {"preset": PRESET, "choices": records, "runs": [run.origin() for run in runs]})


def _on_validation(ours: Runs, theirs: Runs) -> Estimate | None:
    """Return the mean difference on validation images over the seeds that both have; None without any."""
    tests = [
        paired_from_counts(client, seed, one, theirs[seed].validation[client], ours[seed].domains[client])
        for seed in sorted(ours.keys() & theirs.keys())
        for client, one in ours[seed].validation.items()
    ]
    found = compare_paired(tests)
    return None if found is None else found.mean


def _write(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (layout(record) + "\n").encode())


def read_results(name: str) -> Record:
    """Return a file of results/mini."""
    found: Record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found
