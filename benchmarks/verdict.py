"""How often the verdict is wrong where nothing differs, and how often it finds a difference that is there.

    python benchmarks/verdict.py [--comparisons 600] [--real 200] [--out results/verdict/calibration.json]

Simulated tests: each client has a seed deviation of its own, a part of which all clients share, and images have a
difficulty that both runs see. Real tests: two controls of the same small federation, which differ in the seed of
weights and batches only, so that no client has any true difference; for the power, 5% of each client's test images,
drawn among those that the first control has wrong, count as right. Three seeds each. A part whose number is 0 stays as
the file has it. Finished real tests are kept in the folder `--work` and are not run again.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load, save

from factorized_fl.api import configure
from factorized_fl.core.files import write_atomically
from factorized_fl.core.seeds import numpy_rng
from factorized_fl.results.statistic import Paired, PairedTest, compare_paired
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.scenario import build_scenario_of

SEEDS = 3
GAIN = 0.05  # of accuracy: the true difference whose detection is counted
# Clients, test images, deviation of a seed in points of accuracy, correlation of it between clients, spread of the
# deviation over clients (of its logarithm), whether clients share test images, whether seeds do.
SCENARIOS = {
    "mnist-like": (6, 1000, 1.0, 0.3, 0.3, True, False),
    "few images": (6, 100, 1.0, 0.3, 0.3, False, False),
    "demo-like": (12, 360, 1.5, 0.3, 0.3, True, False),
    "twenty clients": (20, 1000, 1.0, 0.5, 0.5, True, False),
    "same images with every seed": (6, 500, 1.0, 0.3, 0.3, True, True),
    "deviations in common": (6, 1000, 1.0, 0.8, 0.3, True, False),
    "no seed deviation": (6, 300, 0.0, 0.0, 0.0, True, False),
}


def simulated(
    rng: np.random.Generator, clients: int, images: int, deviation: float, common: float, spread: float,
    shared: bool, same: bool, gain: float = 0.0,
) -> list[PairedTest]:  # fmt: skip
    """Return the tests of one comparison: an image is right if the ability exceeds its difficulty."""
    per_point = 0.05  # shift of the ability that changes accuracy by about one point
    ability = rng.normal(0.8, 0.4, clients)
    deviations = deviation * per_point * np.exp(spread * rng.normal(size=clients))
    tests = []
    difficulty = rng.normal(size=(1 if shared else clients, images)) * 1.5
    for seed in range(SEEDS):
        if seed and not same:
            difficulty = rng.normal(size=difficulty.shape) * 1.5
        right = []
        for side in range(2):
            drift = np.sqrt(common) * rng.normal() + np.sqrt(1 - common) * rng.normal(size=clients)
            level = ability + deviations * drift + (100 * gain * per_point if side == 0 else 0.0)
            right.append(level[:, None] - difficulty + 0.6 * rng.normal(size=(clients, images)) > 0)
        for k in range(clients):
            start = (0 if shared else k) * images + (0 if same else seed) * clients * images
            gains = right[0][k].astype(np.int8) - right[1][k].astype(np.int8)
            tests.append(PairedTest(k, seed, gains, np.arange(start, start + images)))
    return tests


def graded(partition_seed: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return what the clients of a small control classify right after two rounds, and the positions of the images."""
    config = replace(
        configure("digits-iid", "fedavg"), control=True, seed=seed, partition_seed=partition_seed, rounds=2, epochs=2,
        clients=6, width=0.25, images_per_client=60,
    )  # fmt: skip
    torch.set_num_threads(1)
    federation = build_federation(config, build_scenario_of(config, None), torch.device("cpu"), "reference")
    kept: dict[int, np.ndarray] = {}

    def keep(results: dict) -> None:
        kept.update({k: result.right.numpy() for k, result in results.items()})

    for number in range(1, config.rounds + 1):
        run_round(federation, number, keep=keep)
    return [kept[k] for k in sorted(kept)], [client.test.numpy() for client in federation.scenario.clients]


def graded_pairs(index: int, work: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return, for each seed, what two controls classify right, [2, clients, images], and the images, [clients, images].

    They are read from the folder where it has them, and written to it otherwise.
    """
    pairs = []
    for number in range(1 + index * SEEDS, 1 + (index + 1) * SEEDS):
        file = work / f"{number}.safetensors"
        if not file.exists():
            (one, images), (other, _) = graded(number, number), graded(number, 1_000_000 + number)
            found = {"right": np.stack([one, other]).astype(np.uint8), "images": np.stack(images)}
            write_atomically(file, save(found))
        kept = load(file.read_bytes())
        pairs.append((kept["right"].astype(bool), kept["images"]))
    return pairs


def real(index: int, work: Path, gain: float = 0.0) -> list[PairedTest]:
    """Return the tests of one real comparison; `gain` is the share of images that the first run gets right besides."""
    rng = numpy_rng(1, "verdict", "real", index)
    tests = []
    for seed, (right, images) in enumerate(graded_pairs(index, work)):
        for k, positions in enumerate(images):
            ours, theirs = right[0, k].copy(), right[1, k]
            wrong = np.flatnonzero(~ours)
            ours[rng.permutation(wrong)[: round(gain * len(ours))]] = True
            tests.append(PairedTest(k, seed, ours.astype(np.int8) - theirs.astype(np.int8), positions))
    return tests


def rates(found: Sequence[Paired]) -> dict[str, float]:
    """Return how many comparisons name any client, and how often the interval of the mean leaves zero out."""
    named = [sum(word != "undecided" for word in one.words.values()) for one in found]
    return {
        "comparisons": len(found),
        "name any client": float(np.mean([count > 0 for count in named])),
        "interval without zero": float(np.mean([not one.mean.low <= 0 <= one.mean.high for one in found])),
        "deviation of the mean": float(np.std([one.mean.value for one in found])),
    }


def power(found: Sequence[Paired]) -> dict[str, float]:
    """Return how often a client with a true gain is helped, and how often the mean's interval is above zero."""
    words = [word for one in found for word in one.words.values()]
    return {
        "true mean difference": float(np.mean([one.mean.value for one in found])),
        "clients helped": float(np.mean([word == "helped" for word in words])),
        "comparisons that help any client": float(np.mean(["helped" in one.words.values() for one in found])),
        "interval above zero": float(np.mean([one.mean.low > 0 for one in found])),
    }


def compared(make: Callable[[np.random.Generator], list[PairedTest]], count: int, purpose: str) -> list[Paired]:
    """Return the results of so many simulated comparisons."""
    results = (compare_paired(make(numpy_rng(1, "verdict", purpose, at))) for at in range(count))
    return [result for result in results if result is not None]


def main() -> None:
    """Simulate, run, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=600)
    parser.add_argument("--real", type=int, default=200)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("runs/verdict-real"), help="finished real tests")
    parser.add_argument("--out", type=Path, default=Path("results/verdict/calibration.json"))
    given = parser.parse_args()
    written = {"seeds": SEEDS, "true gain": GAIN, "simulated": {}, "real": {}}
    if given.out.exists():
        written |= json.loads(given.out.read_text())
    for name, scenario in SCENARIOS.items() if given.comparisons else ():
        nothing = compared(lambda rng, s=scenario: simulated(rng, *s), given.comparisons, name)
        gained = compared(lambda rng, s=scenario: simulated(rng, *s, gain=GAIN), given.comparisons, f"{name}, gain")
        written["simulated"][name] = {"without an effect": rates(nothing), "with the gain": power(gained)}
        print(name, json.dumps(written["simulated"][name]), flush=True)
    if given.real:
        given.work.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(given.processes) as pool:
            for at, _ in enumerate(pool.map(partial(graded_pairs, work=given.work), range(given.real))):
                print(f"{at + 1} of {given.real} real comparisons", end="\r", flush=True)
        nothing, gained = (
            [one for index in range(given.real) if (one := compare_paired(real(index, given.work, gain))) is not None]
            for gain in (0.0, GAIN)
        )
        written["real"] = {"without an effect": rates(nothing), "with the gain": power(gained)}
        print("real", json.dumps(written["real"]), flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
