"""Matching of two clients by distances, with few images, and clients with random labels: results/align/checks.json.

python -m studies.alignment_checks measure DATA    about five minutes on one core
python -m studies.alignment_checks show            prints the rows of the tables in docs/classes.md
"""

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment

from factorized_fl.api import configure
from factorized_fl.core.classes import MEANS
from factorized_fl.core.seeds import numpy_rng, torch_rng
from factorized_fl.data.scenarios import Scenario
from factorized_fl.methods.class_evidence import statistics_evidence
from factorized_fl.methods.class_statistics import describe_classes, random_features
from factorized_fl.methods.correspondence import StatisticsMatcher
from factorized_fl.results.rundir import Record
from factorized_fl.simulate.alignment import true_labels
from factorized_fl.simulate.networks import model_inputs
from factorized_fl.simulate.scenario import build_scenario_of
from studies.alignment import LEAST, PRESETS, describe_all, scenario_of, score, shares
from studies.runner import write_measured

CHOSEN, SEEDS = (1, 2, 3), (4, 5, 6)  # the seeds on which choices were made, and those on which none was
SCRAMBLED = 20  # draws of a client with random labels
COUNTS = (96, 30, 10, 3)  # images of each of a client's ten classes
PATH = Path("results/align/checks.json")
DEFAULT = 0.3  # the default of align_confidence
WAYS = ("distances of 1024", "distances of 128", "likelihood ratios of 64", "likelihood ratios of 128")
Features = Callable[[torch.Tensor], torch.Tensor]


def wide_features(seed: int) -> Features:
    """64 random filters, ReLU, and means on a 4 x 4 grid: 1,024 numbers of an image, without a projection."""

    def found(images: torch.Tensor) -> torch.Tensor:
        filters = torch.randn(64, images.shape[1], 3, 3, generator=torch_rng(seed, "class features"))
        filters = filters / filters.flatten(1).norm(dim=1)[:, None, None, None]
        return F.adaptive_avg_pool2d(F.relu(F.conv2d(images, filters, padding=1)), 4).flatten(1)

    return found


def right_pairs(scenario: Scenario, scores: Callable[[int, int], np.ndarray]) -> tuple[int, int]:
    """How many classes Hungarian matching of two clients of one domain matches rightly, and how many there are."""
    truth = true_labels(scenario, 10).numpy()
    right = total = 0
    for one, two in itertools.combinations(range(len(truth)), 2):
        if scenario.clients[one].domain == scenario.clients[two].domain:
            rows, columns = linear_sum_assignment(-scores(one, two))
            right += int((truth[one][rows] == truth[two][columns]).sum())
            total += len(rows)
    return right, total


def counted_scenario(each: int, seed: int, data: Path) -> Scenario:
    """Clients of `mini-domains` with about so many images of each class."""
    return build_scenario_of(configure(PRESETS[0], seed=seed, images_per_client=10 * each), data)


def match_counted(each: int, seed: int, data: Path) -> Record:
    """The score of matching all clients at once, and of two that are known to have the same classes, by images."""
    scenario = counted_scenario(each, seed, data)
    extra = describe_all(scenario, seed)
    there = extra[MEANS][:, :, -1] > 0
    found = StatisticsMatcher().match(extra, torch.ones(len(there), dtype=torch.bool))
    truth = true_labels(scenario, there.shape[1]).where(there, -1)
    record: Record = {"images": each, "seed": seed, "all": score(found, truth)}
    return record | (match_pairs(scenario, seed) if there.all() else {})


def match_pairs(scenario: Scenario, seed: int) -> Record:
    """Hungarian matching of two clients that are known to have the same classes: distances, and likelihood ratios."""
    images = [model_inputs(scenario, scenario.images[client.train]) for client in scenario.clients]
    labels = [scenario.targets(k, client.train) for k, client in enumerate(scenario.clients)]
    ways: dict[str, Features] = {"1024": wide_features(seed), "128": lambda x: random_features(x, seed, mirrored=True)}
    record: Record = {}
    for name, features in ways.items():
        means = [
            torch.stack([found[own == c].mean(0) for c in range(10)])
            for found, own in zip(map(features, images), labels, strict=True)
        ]

        def distances(one: int, two: int, means: Sequence[torch.Tensor] = means) -> np.ndarray:
            spread = torch.cat([means[one], means[two]]).std(0) + 1e-9
            first, second = ((means[k] - means[k].mean(0)) / spread for k in (one, two))
            return -torch.cdist(first, second).numpy()

        record[f"distances of {name}"] = right_pairs(scenario, distances)
    each = [
        describe_classes(ways["1024"](x) @ _projection(seed), own, 10, 0.0, torch_rng(seed, "none"))
        for x, own in zip(images, labels, strict=True)
    ]
    earlier = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    for name, extra in (("64", earlier), ("128", describe_all(scenario, seed))):
        evidence, owner, _ = statistics_evidence(extra, extra[MEANS][:, :, -1] > 0)

        def ratios(one: int, two: int, evidence: np.ndarray = evidence, owner: np.ndarray = owner) -> np.ndarray:
            return evidence[np.ix_(owner == one, owner == two)]

        record[f"likelihood ratios of {name}"] = right_pairs(scenario, ratios)
    return record


def _projection(seed: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(1024, 64, generator=torch_rng(seed, "projection")))[0]


def match_scrambled(draw: int, data: Path) -> Record:
    """How many classes of a client with random labels are matched with those of the others, by least confidence."""
    seed = (CHOSEN + SEEDS)[draw % 6]
    scenario = scenario_of(PRESETS[0], seed, data)
    extra = describe_all(scenario, seed)
    rng = numpy_rng(draw, "random labels")
    k = int(rng.integers(len(scenario.clients)))
    client = scenario.clients[k]
    labels = scenario.targets(k, client.train)
    labels = labels[torch.from_numpy(rng.permutation(len(labels)))]
    features = random_features(model_inputs(scenario, scenario.images[client.train]), seed, mirrored=True)
    for name, tensor in describe_classes(features, labels, 10, 0.0, torch_rng(seed, "none")).items():
        extra[name][k] = tensor
    found = StatisticsMatcher().match(extra, torch.ones(len(scenario.clients), dtype=torch.bool))
    sure = found.confidence[k][found.labels[k] >= 0]
    return {"draw": draw, "seed": seed, "client": k} | {f"{least:g}": int((sure >= least).sum()) for least in LEAST}


def measure_checks(data: Path) -> Record:
    """All measurements."""
    return {
        "pairs": [{"seed": seed, **match_pairs(scenario_of(PRESETS[0], seed, data), seed)} for seed in CHOSEN + SEEDS],
        "counts": [match_counted(each, seed, data) for each in COUNTS for seed in SEEDS],
        "scrambled": [match_scrambled(draw, data) for draw in range(SCRAMBLED)],
    }


def check_lines(record: Record) -> list[str]:
    """The rows of the documentation's tables."""
    lines = []
    for seeds in (CHOSEN, SEEDS):
        rows = [row for row in record["pairs"] if row["seed"] in seeds]
        lines.append(f"| {', '.join(map(str, seeds))} | {' | '.join(_right(rows, way) for way in WAYS)} |")
    for each in COUNTS:
        rows = [row for row in record["counts"] if row["images"] == each]
        found = shares([row["all"] for row in rows], (DEFAULT,))
        lines.append(f"| {each} | {' | '.join([*(_right(rows, way) for way in (WAYS[0], WAYS[-1])), *found])} |")
    sure = [row[f"{DEFAULT:g}"] for row in record["scrambled"]]
    lines.append(f"| {len(sure)} | {10 * len(sure)} | {sum(sure)} |")
    return lines


def _right(rows: Sequence[Record], way: str) -> str:
    counts = [row[way] for row in rows if way in row]
    return f"{sum(right for right, _ in counts) / sum(total for _, total in counts):.0%}" if counts else "-"


if __name__ == "__main__":
    if sys.argv[1] == "show":
        print("\n".join(check_lines(json.loads(PATH.read_text(encoding="utf-8")))))
    else:
        start = configure(PRESETS[0], seed=CHOSEN[0])
        write_measured(PATH, start, "cpu", lambda: measure_checks(Path(sys.argv[2])))
