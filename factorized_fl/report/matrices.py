"""The matrices of a run for the page: those of some rounds as bytes, and means over all rounds."""

import base64
from collections.abc import Sequence

import numpy as np

from factorized_fl.results.reading import Matrix, RunFiles, recorded_rounds
from factorized_fl.results.schema import MIXING, TRACES, Record

_NAMES = {"matrix": "mixing", "similarity": "matching", "cosine.u": "u", "cosine.v": "v"}


def collect_matrices(run: RunFiles, budget: int) -> Record:
    """Return the aggregation and similarity matrices of some rounds, and their means over all rounds."""
    count = len(run.clients)
    rounds = {folder: recorded_rounds(run.path, folder) for folder in (MIXING, TRACES)}
    cells = 2 * count * count * sum(map(len, rounds.values()))
    stride = max(1, -(-cells // max(budget, 1)))
    took_part = {(r["round"], r["client"]) for r in run.metrics if r["steps"] or r["down_bytes"]}
    same = np.array([[a["domain"] == b["domain"] for b in run.clients] for a in run.clients], dtype=bool)
    kept: dict[str, list[tuple[int, Matrix]]] = {}
    means: dict[str, list[tuple[int, float | None, float | None]]] = {}
    mu: list[tuple[int, Matrix]] = []
    matched, mixed = np.zeros((count, count)), np.zeros(count)
    for folder, numbers in rounds.items():
        for at, round_number in enumerate(numbers):
            tensors = run.matrices(folder, round_number)
            if "mu" in tensors:
                mu.append((round_number, tensors.pop("mu").mean(0)))
            for name, matrix in tensors.items():
                shown = _NAMES.get(name)
                if shown is None or matrix.shape != (count, count):
                    continue
                if shown == "mixing":
                    active = np.array([(round_number, k) in took_part for k in range(count)]) | (not took_part)
                    matched[active] += matrix[active] > 0
                    mixed += active
                    matrix[~active] = np.nan
                else:
                    np.fill_diagonal(matrix, np.nan)
                    means.setdefault(shown, []).append((round_number, _mean(matrix[same]), _mean(matrix[~same])))
                if (len(numbers) - 1 - at) % stride == 0:
                    kept.setdefault(shown, []).append((round_number, matrix))
    if stride > 1:
        run.notes.append(f"The matrices of one round in {stride} are shown, to keep this page small.")
    return {
        "shown": {name: _quantised(entries, low=0.0 if name == "mixing" else None) for name, entries in kept.items()},
        "means": {name: [list(column) for column in zip(*rows, strict=True)] for name, rows in means.items()},
        "matched": _frequency(matched, mixed),
        "mu": _sparsity(run, mu),
    }


def _mean(values: Matrix) -> float | None:
    values = values[np.isfinite(values)]
    return round(float(values.mean()), 5) if len(values) else None


def _quantised(entries: Sequence[tuple[int, Matrix]], low: float | None = None, high: float | None = None) -> Record:
    """Return matrices as bytes: 0 to 254 between low and high, 255 for missing values."""
    finite = [matrix[np.isfinite(matrix)] for _, matrix in entries]
    values = np.concatenate(finite) if finite else np.zeros(0)
    low = (float(values.min()) if len(values) else 0.0) if low is None else low
    high = (float(values.max()) if len(values) else 1.0) if high is None else high
    scale = 254 / (high - low) if high > low else 0.0
    data = []
    for _, matrix in entries:
        steps = np.where(np.isfinite(matrix), np.round((np.nan_to_num(matrix) - low) * scale).clip(0, 254), 255)
        data.append(to_base64(steps.astype(np.uint8)))
    return {"rounds": [round_number for round_number, _ in entries], "low": low, "high": high, "data": data}


def _frequency(matched: Matrix, mixed: Matrix) -> Record | None:
    """Return the share of each client's rounds in which it gave weight to each other client."""
    if not mixed.any():
        return None
    shares = matched / np.where(mixed > 0, mixed, np.nan)[:, None]
    np.fill_diagonal(shares, np.nan)
    return _quantised([(0, shares)], low=0.0, high=1.0)


def _sparsity(run: RunFiles, mu: Sequence[tuple[int, Matrix]]) -> Record | None:
    """Return the share of nonzero mu in each layer by round, averaged over clients."""
    mu = [(round_number, row) for round_number, row in mu if len(row) == len(mu[0][1])]
    if not mu:
        return None
    layers = run.mu_layers if len(run.mu_layers) == len(mu[0][1]) else [f"layer {i + 1}" for i in range(len(mu[0][1]))]
    shares = [[None if np.isnan(x) else round(float(x), 4) for x in row] for _, row in mu]
    return {"layers": layers, "rounds": [round_number for round_number, _ in mu], "kept": shares}


def to_base64(array: Matrix) -> str:
    """Return the array's bytes as base64 text."""
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
