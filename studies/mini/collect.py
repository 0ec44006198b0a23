"""From finished run directories to results/mini/grid.json and results/mini/tuning.json."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorized_fl.config import Config, resolve
from factorized_fl.core.files import write_atomically
from factorized_fl.presets import find_preset
from factorized_fl.results.effect import measure_effect
from factorized_fl.results.reading import RunFiles, find_runs, read_run
from factorized_fl.results.rundir import Record, RunDirectory
from factorized_fl.results.schema import as_record
from studies.runner import layout

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "mini"
PRESET = "mini-domains"

# A row of the grid: its method, whether clients aggregate with themselves alone, and the oracle.
Row = tuple[str, bool, str]
ALONE: Row = ("stand-alone", False, "none")
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


def row_of(run: RunFiles) -> Row:
    """Return the row of the grid that a run belongs to."""
    return run.method, bool(run.config.get("control")), str(run.config.get("oracle", "none"))


def row_name(row: Row) -> str:
    """Return a name for a row in files."""
    method, control, oracle = row
    return method + ("+control" if control else "") + (f"+{oracle}" if oracle != "none" else "")


def write_grid(folder: Path, out: Path = RESULTS / "grid.json") -> None:
    """Write the scores of the complete runs in a folder, and the answers to the questions."""
    runs = [run for path in find_runs([folder]) if (run := read_run(path)).complete]
    rows: dict[Row, dict[int, RunFiles]] = {}
    for run in runs:
        rows.setdefault(row_of(run), {})[run.seed] = run
    effects = {
        question: [_answer(rows[one], rows[other]) for one, other in pairs if _common(rows, one, other)]
        for question, pairs in QUESTIONS.items()
    }
    _write(out, {"preset": PRESET, "questions": effects, "runs": [_record(run) for run in runs]})


def _common(rows: Mapping[Row, Mapping[int, RunFiles]], one: Row, other: Row) -> set[int]:
    return rows.get(one, {}).keys() & rows.get(other, {}).keys()


def _answer(one: Mapping[int, RunFiles], other: Mapping[int, RunFiles]) -> Record:
    seeds = sorted(one.keys() & other.keys())
    ours, theirs = ([runs[seed] for seed in seeds] for runs in (one, other))
    names = [row_name(row_of(runs[0])) for runs in (ours, theirs)]
    effect = measure_effect(ours, theirs, names[1])
    assert effect is not None
    means = {name: getattr(effect, name) for name in ("mean", "low", "high")}
    counts = {word: effect.number(word) for word in ("helped", "harmed", "undecided")}
    plain = [_means(run, "plain") - _means(base, "plain") for run, base in zip(ours, theirs, strict=True)]
    return {"row": names[0], "over": names[1], "seeds": seeds, **means, **counts, "plain": _mean(plain)}


def write_tuning(folders: Sequence[Path], out: Path = RESULTS / "tuning.json") -> None:
    """Write the accuracy on validation images of the complete runs in some folders."""
    runs = [run for path in find_runs(list(folders)) if (run := read_run(path)).complete]
    records = [_origin(run) | {"validation": round(_validation(run), 5)} for run in runs]
    chosen = {method: _settings(method) for method in sorted({run.method for run in runs})}
    _write(out, {"preset": PRESET, "profile": chosen, "runs": records})


def _settings(method: str) -> Record:
    """Return what the profile `tuned` gives a method on the preset, as far as that is not the default."""
    tuned = resolve(find_preset(PRESET), method)
    plain = resolve(find_preset(PRESET), method, {"profile": "none"})
    return {k: v for k, v in _flat(tuned).items() if v != _flat(plain)[k] and k not in ("profile", "recalibrate")}


def _flat(config: Config) -> dict[str, Any]:
    return {**{k: v for k, v in vars(config).items() if k != "options"}, **config.options}


def _origin(run: RunFiles) -> Record:
    """Return what was run: the settings in which it differs from the preset without a profile, and where."""
    environment = dict(run.environment)
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in {**run.config, **run.options}.items()}
    usual = _flat(resolve(find_preset(PRESET), run.method, {"profile": "none"}))
    usual |= {"preset": PRESET, "profile": settings.get("profile")}
    return {
        "row": row_name(row_of(run)),
        "seed": run.seed,
        "commit": environment.pop("commit", None),
        "machine": {name: environment.get(name) for name in ("platform", "device", "threads", "python", "packages")},
        "settings": {name: value for name, value in settings.items() if usual.get(name) != value and name != "seed"},
        "seconds": round(sum(run.seconds.values()), 1),
    }


def _record(run: RunFiles) -> Record:
    """Return the origin, the traffic and the scores of a run of the grid."""
    summary = as_record(RunDirectory(run.path).summary())
    return _origin(run) | {
        "bytes": {way: run.total(f"{way}_bytes") for way in ("up", "down")},  # type: ignore[arg-type]
        "scores": summary["score_means"],
        "clients": [_by_client(client) for client in summary["clients"]],
    }


def _by_client(client: Mapping[str, Any]) -> Record:
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


def _summary(run: RunFiles) -> Record:
    return as_record(RunDirectory(run.path).summary())


def _means(run: RunFiles, kind: str) -> float:
    return float(_summary(run)["score_means"][kind]["test"])


def _validation(run: RunFiles) -> float:
    """Return the accuracy on validation images with recalibrated statistics."""
    if run.config.get("score") == "validation":
        return float(_summary(run)["accuracy_mean"])
    return float(_summary(run)["score_means"]["recalibrated"]["validation"])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _write(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (layout(record) + "\n").encode())


def read_results(name: str) -> Record:
    """Return a file of results/mini."""
    found: Record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found
