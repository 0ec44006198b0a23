"""Measures how well classes are matched, without any training; writes results/align/matching.json.

python -m studies.alignment matching --data DATA --seeds 4,5,6
python -m studies.alignment show                                 prints the rows of the tables in docs/classes.md
"""

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch

from factorized_fl.api import configure
from factorized_fl.core.classes import MEANS, Matches
from factorized_fl.core.seeds import numpy_rng, torch_rng
from factorized_fl.data.scenarios import Scenario
from factorized_fl.methods.class_evidence import statistics_evidence
from factorized_fl.methods.class_statistics import describe_classes, random_features
from factorized_fl.methods.correspondence import StatisticsMatcher, assign_classes
from factorized_fl.results.rundir import Record
from factorized_fl.simulate.alignment import true_labels
from factorized_fl.simulate.networks import model_inputs
from factorized_fl.simulate.scenario import build_scenario_of
from studies.runner import write_measured

PRESETS = ("mini-domains", "mini-domains-dirichlet", "mini-domains-unequal", "mini-domains-30")
LEAST = (0.0, 0.1, 0.3, 0.5, 0.9)  # confidence; 0.3 is the default
NOISES = (0.0, 0.1, 0.2, 0.5, 1.0)
DRAWS = 20
Described = dict[str, torch.Tensor]


@lru_cache(maxsize=4)
def scenario_of(preset: str, seed: int, data: Path) -> Scenario:
    """The scenario of a preset, kept for the next measurement."""
    return build_scenario_of(configure(preset, seed=seed), data)


def describe_all(
    scenario: Scenario, seed: int, noise: float = 0.0, chosen: Sequence[Sequence[int]] = (), mirrored: bool = True
) -> Described:
    """The payloads of all clients; `chosen` are the classes that each of them keeps."""
    most, each = max(len(client.classes) for client in scenario.clients), []
    for k, client in enumerate(scenario.clients):
        features = random_features(model_inputs(scenario, scenario.images[client.train]), seed, mirrored)
        labels = scenario.targets(k, client.train)
        kept = torch.isin(labels, torch.tensor(chosen[k])) if chosen else torch.ones_like(labels, dtype=torch.bool)
        each.append(describe_classes(features[kept], labels[kept], most, noise, torch_rng(seed, "class noise", k)))
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def judge(found: Matches, truth: torch.Tensor) -> Iterator[tuple[bool, float | None]]:
    """For each pair of classes of two clients: whether they are the same, and the confidence if they were matched."""
    flat = [(k, c) for k, c in itertools.product(*map(range, truth.shape)) if truth[k, c] >= 0]
    for one, two in itertools.combinations(flat, 2):
        if one[0] != two[0]:
            matched = int(found.labels[one]) == int(found.labels[two]) >= 0
            sure = float(min(found.confidence[one], found.confidence[two])) if matched else None
            yield bool(truth[one] == truth[two]), sure


def score(found: Matches, truth: torch.Tensor) -> Record:
    """How many pairs are the same class, and by least confidence how many were matched and how many of them right."""
    pairs = list(judge(found, truth))
    result: Record = {"same": sum(same for same, _ in pairs)}
    for least in LEAST:
        kept = [same for same, sure in pairs if sure is not None and sure >= least]
        result[f"{least:g}"] = {"matched": len(kept), "right": sum(kept)}
    return result


def match_preset(preset: str, seed: int, data: Path, noise: float = 0.0) -> Record:
    """The score of matching all clients of a preset at once."""
    scenario = scenario_of(preset, seed, data)
    extra = describe_all(scenario, seed, noise)
    truth = true_labels(scenario, extra[MEANS].shape[1]).where(extra[MEANS][:, :, -1] > 0, -1)
    found = StatisticsMatcher().match(extra, torch.ones(len(truth), dtype=torch.bool))
    return {"preset": preset, "seed": seed, "noise": noise, **score(found, truth)}


def match_groups(preset: str, seed: int, data: Path) -> Record:
    """The score if the true domains were known: matching each alone, and assigning inside each by evidence from all."""
    scenario = scenario_of(preset, seed, data)
    extra = describe_all(scenario, seed)
    there = extra[MEANS][:, :, -1] > 0
    truth = true_labels(scenario, there.shape[1]).where(there, -1)
    evidence, owner, number = statistics_evidence(extra, there)
    domains = [client.domain for client in scenario.clients]
    alone, inside = Matches.none(*truth.shape), Matches.none(*truth.shape)
    for group, domain in enumerate(dict.fromkeys(domains)):
        own = [k for k, other in enumerate(domains) if other == domain]
        found = StatisticsMatcher().match({n: t[own] for n, t in extra.items()}, torch.ones(len(own), dtype=torch.bool))
        alone.labels[own] = torch.where(found.labels >= 0, found.labels + truth.numel() * group, -1)
        alone.confidence[own] = found.confidence
        here = np.isin(owner, own)
        labels, confidence = assign_classes(evidence[np.ix_(here, here)], owner[here])
        place = torch.from_numpy(owner[here]), torch.from_numpy(number[here])
        inside.labels[place] = torch.from_numpy(labels) + truth.numel() * group
        inside.confidence[place] = torch.from_numpy(confidence)
    found_inside = inside.but(inside.confidence > 0)
    return {"preset": preset, "seed": seed, "alone": score(alone, truth), "inside": score(found_inside, truth)}


def match_unlike(draw: int, split: bool, data: Path) -> Record:
    """Three clients of one domain with 10, 7 and 4 classes, 4 of them common; or two, one with a merged class.

    In the second case one class of the second client is the union of two of the first, so no match of it is right.
    """
    config = configure("mini-domains", seed=100 + draw, images_per_client=800)
    scenario = build_scenario_of(config, data)
    rng = numpy_rng(draw, "unlike")
    domain = scenario.clients[0].domain
    members = [client for client in scenario.clients if client.domain == domain][:3]
    scenario = replace(scenario, clients=tuple(members))
    truth = true_labels(scenario, 10)
    if split:
        two = rng.permutation(10)[:2]
        other = members[1]
        merged = torch.where(truth[1] == int(two[1]), int(two[0]), truth[1])
        joined = {int(label): int((merged == label).nonzero()[0]) for label in merged.unique()}
        again = torch.tensor([joined[int(merged[own])] for own in other.labelling])
        scenario = replace(scenario, clients=(members[0], replace(other, labelling=again), members[2]))
        extra = describe_all(scenario, draw)
        truth[1] = merged
        truth[1, truth[1] == int(two[0])] = 99  # the union is neither of the two
        truth = truth.where(extra[MEANS][:, :, -1] > 0, -1)
    else:
        common = rng.permutation(10)
        # 10, 7 and 4 classes; the third client's four are all common, the second has three more of the first's.
        wanted = [common, common[:7], common[:4]]
        chosen = [[int((truth[k] == int(c)).nonzero()[0]) for c in own] for k, own in enumerate(wanted)]
        extra = describe_all(scenario, draw, chosen=chosen)
        truth = truth.where(extra[MEANS][:, :, -1] > 0, -1)
    found = StatisticsMatcher().match(extra, torch.ones(3, dtype=torch.bool))
    return {"draw": draw, "case": "split" if split else "10-7-4", **score(found, truth)}


def measure_matching(data: Path, seeds: Sequence[int]) -> Record:
    """Everything that needs no training."""
    return {
        "noise": [match_preset(PRESETS[0], seed, data, noise) for seed in seeds for noise in NOISES],
        "presets": [match_preset(preset, seed, data) for preset in PRESETS for seed in seeds],
        "groups": [match_groups(preset, seed, data) for preset in PRESETS[:2] for seed in seeds],
        "unlike": [match_unlike(draw, split, data) for split in (False, True) for draw in range(DRAWS)],
    }


def shares(rows: Sequence[Record], least: Sequence[float]) -> list[str]:
    """For each least confidence: the share of equal pairs that were found, and the share of matches that are right."""
    cells = []
    for each in least:
        matched, right = (sum(row[f"{each:g}"][what] for row in rows) for what in ("matched", "right"))
        cells.append(f"{right / sum(row['same'] for row in rows):.0%} / {f'{right / matched:.0%}' if matched else '-'}")
    return cells


def matching_lines(record: Record) -> list[str]:
    """The rows of the documentation's tables about matching."""
    shown = (0.3, 0.5, 0.9)
    lines = []
    for preset in PRESETS:
        rows = [row for row in record["presets"] if row["preset"] == preset]
        lines.append(f"| `{preset}` | {' | '.join(shares(rows, shown))} |")
    for noise in NOISES:
        rows = [row for row in record["noise"] if row["noise"] == noise]
        lines.append(f"| {noise:g} | {' | '.join(shares(rows, shown))} |")
    for case in ("10-7-4", "split"):
        rows = [row for row in record["unlike"] if row["case"] == case]
        false = sum(row["0.9"]["matched"] - row["0.9"]["right"] for row in rows)
        lines.append(f"| {case} | {' | '.join(shares(rows, shown))} | {false} in {len(rows)} draws |")
    for preset, way in itertools.product(PRESETS[:2], ("alone", "inside")):
        rows = [row[way] for row in record["groups"] if row["preset"] == preset]
        lines.append(f"| `{preset}` | {way} | {' | '.join(shares(rows, shown))} |")
    return lines


def main() -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("matching", "show"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/align"))
    parser.add_argument("--seeds", default="1")
    given = parser.parse_args()
    path = given.out / "matching.json"
    if given.what == "show":
        print("\n".join(matching_lines(json.loads(path.read_text(encoding="utf-8")))))
        return
    seeds = [int(seed) for seed in given.seeds.split(",")]
    write_measured(path, configure(PRESETS[0], seed=seeds[0]), "cpu", partial(measure_matching, given.data, seeds))


if __name__ == "__main__":
    main()
