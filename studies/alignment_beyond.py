"""Further variants of class matching, tried on the embedded data of the demo: results/align/beyond/.

python -m studies.alignment_beyond features    matching by features of a trained body; a minute on one core
python -m studies.alignment_beyond rounds      matches by classifiers in each round; two minutes on one core
python -m studies.alignment_beyond show        prints the rows of the table of rounds
"""

import itertools
import json
import sys
from pathlib import Path

import torch

from factorized_fl.api import configure
from factorized_fl.core.classes import MEANS
from factorized_fl.core.roles import find_head
from factorized_fl.core.seeds import torch_rng
from factorized_fl.methods.class_statistics import describe_classes
from factorized_fl.methods.correspondence import StatisticsMatcher
from factorized_fl.results.rundir import Record
from factorized_fl.simulate.alignment import judge_matches, match_summary, mirrors_images, true_labels
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.networks import model_inputs
from factorized_fl.simulate.rounds import download, run_round
from factorized_fl.simulate.scenario import build_scenario_of
from studies.alignment import describe_all
from studies.alignment_runs import found_and_right
from studies.runner import write_measured

SEEDS = (4, 5, 6)
METHODS = ("factorized-peers", "fedavg")
LEAST = 0.3  # the default confidence
SHOWN = (1, 2, 3, 6, 12, 24)  # rounds
RESULTS = Path("results/align/beyond")


@torch.no_grad()
def trained_features(federation: Federation, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs of client k's classifier for its training images, [n, D], and their labels."""
    scenario, client = federation.scenario, federation.scenario.clients[k]
    # Running statistics of BatchNorm stay at home and differ, so each client normalises with those of its images.
    model = federation.engine.models[len(client.classes)].train()  # type: ignore[attr-defined]
    found: list[torch.Tensor] = []
    head = model.get_submodule(find_head(model))
    hook = head.register_forward_pre_hook(lambda module, given: found.append(given[0].flatten(1)))
    tensors = {name: tensor.clone() for name, tensor in federation.clients.state.client(k).items()}
    torch.func.functional_call(model, tensors, model_inputs(scenario, scenario.images[client.train]))
    hook.remove()
    return found[0], scenario.targets(k, client.train)


def measure_features(seed: int) -> list[Record]:
    """Matches by random features, and by those of a body that FedAvg trained for some rounds."""
    config = configure("demo", "fedavg", seed=seed)
    scenario = build_scenario_of(config, None)
    federation = build_federation(config, scenario, torch.device("cpu"), "reference")
    truth = true_labels(scenario, max(len(client.classes) for client in scenario.clients))
    everyone = torch.ones(len(truth), dtype=torch.bool)

    def judged(name: str, extra: dict[str, torch.Tensor]) -> Record:
        there = extra[MEANS][:, :, -1] > 0
        found = StatisticsMatcher().match(extra, everyone)
        return {
            "features": name,
            "seed": seed,
            **judge_matches(found.but(found.confidence >= LEAST).labels, truth.where(there, -1)),
        }

    records = [judged("random", describe_all(scenario, seed, mirrored=mirrors_images(config, scenario)))]
    for round_number in range(1, config.rounds + 1):
        run_round(federation, round_number)
        if round_number in (1, 3, config.rounds):
            # The aggregated body, which is the same at all clients; training has moved their own ones apart.
            download(federation, round_number + 1, range(len(truth)), range(len(truth)))
            each = [
                describe_classes(*trained_features(federation, k), truth.shape[1], 0.0, torch_rng(seed, "none", k))
                for k in range(len(truth))
            ]
            extra = {name: torch.stack([one[name] for one in each]) for name in each[0]}
            records.append(judged(f"trained for {round_number} rounds", extra))
    return records


def measure_all_features() -> Record:
    """Matches by random and by trained features."""
    return {"features": [record for seed in SEEDS for record in measure_features(seed)]}


def measure_rounds() -> Record:
    """Matches in use in each round of runs with `align = "classifier"`, one epoch a round."""
    found = []
    for method, seed in itertools.product(METHODS, SEEDS):
        config = configure("demo", method, seed=seed, align="classifier", rounds=24, epochs=1)
        scenario = build_scenario_of(config, None)
        federation = build_federation(config, scenario, torch.device("cpu"), "reference")
        for round_number in range(1, config.rounds + 1):
            run_round(federation, round_number)
            assert federation.server.classes is not None
            counts = match_summary(scenario, federation.server.classes)["matches"]
            found.append({"method": method, "seed": seed, "round": round_number, **counts})
    return {"rounds": found}


def round_lines(record: Record) -> list[str]:
    """The rows of the documentation's table of rounds."""
    lines = []
    for method in METHODS:
        rows = [[row for row in record["rounds"] if row["method"] == method and row["round"] == r] for r in SHOWN]
        lines.append(f"| {method} | {' | '.join(found_and_right(each) for each in rows)} |")
    return lines


def main() -> None:
    """Measure, or print the rows of the tables."""
    what = sys.argv[1]
    if what == "show":
        print("\n".join(round_lines(json.loads((RESULTS / "rounds.json").read_text(encoding="utf-8")))))
        return
    measure = {"features": measure_all_features, "rounds": measure_rounds}[what]
    write_measured(RESULTS / f"{what}.json", configure("demo", seed=SEEDS[0]), "cpu", measure)


if __name__ == "__main__":
    main()
