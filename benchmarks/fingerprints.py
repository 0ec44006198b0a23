"""How well fingerprints find a client's true peers, on the five domains of CIFAR-100, before any training.

    python benchmarks/fingerprints.py --data DIR [--seeds 1,2,3] [--out results/fingerprints/matching.json]

For each partition and each fingerprint: the share of a client's nearest neighbours that belong to its own domain, with
as many neighbours as the domain has other clients, and the share that chance would give. For Factorized-Peers also the
weight of the own domain (by likeness, trust and size).
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from factorized_fl.api import configure
from factorized_fl.core.mixing import cosine
from factorized_fl.data.scenarios import Scenario
from factorized_fl.methods import fingerprints as f
from factorized_fl.methods.peers import peer_weights
from factorized_fl.results.environment import describe_environment
from factorized_fl.simulate.networks import initial_model
from factorized_fl.simulate.scenario import build_scenario_of
from factorized_fl.tasks.augment import normalise

SETTINGS = {
    "equal shares": {},
    "Dirichlet(0.5) classes in each domain": {"partition": "dirichlet", "alpha": 0.5},
    "Dirichlet(0.3) classes in each domain": {"partition": "dirichlet", "alpha": 0.3},
    "1, 2, 3, 6 and 8 clients per domain": {"clients_per_domain": (1, 2, 3, 6, 8)},
    "100 images per client": {"images_per_client": 100},
    "30 images per client": {"images_per_client": 30},
}
BLURS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)


def moments(pixels: torch.Tensor) -> torch.Tensor:
    """Mean and mean square of every colour, image by image."""
    flat = pixels.double().flatten(2)
    return torch.cat([flat.mean(2), flat.square().mean(2)], 1)


def plain(rows: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Statistics in which all images have the same weight, without noise and contrast."""
    channels = rows.shape[1] // 2
    mean, square = rows.mean(0).split(channels)
    return torch.cat([mean, (square - mean.square()).clamp_min(1e-12).log(), torch.ones(2)]).float()


def standardised(values: torch.Tensor) -> torch.Tensor:
    """Cosine over coordinates that are standardised across clients."""
    values = values.double()
    return cosine((values - values.mean(0)) / values.std(0).clamp_min(1e-12))


def nearest(closeness: torch.Tensor, domains: list[str]) -> float:
    """The mean share of the own domain among as many nearest neighbours as the domain has other clients."""
    closeness = closeness.clone().fill_diagonal_(-torch.inf)
    shares = []
    for k, domain in enumerate(domains):
        if (others := domains.count(domain) - 1) > 0:
            found = closeness[k].topk(others).indices.tolist()
            shares.append(sum(domains[i] == domain for i in found) / others)
    return statistics.fmean(shares)


def own_weight(prints: torch.Tensor, sizes: torch.Tensor, domains: list[str]) -> tuple[float, float]:
    """The weight of the own domain in Factorized-Peers: mean and minimum over clients."""
    alike = f.likeness(prints, torch.ones(len(prints), dtype=torch.bool))
    weights = peer_weights(prints, alike, sizes)
    same = torch.tensor([[one == other for other in domains] for one in domains])
    own = (weights * same).sum(1)
    return float(own.mean()), float(own.min())


def by_clients(scenario: Scenario, rows: torch.Tensor, describe: Callable[..., torch.Tensor]) -> torch.Tensor:
    return torch.stack(
        [
            describe(rows[client.train], client.labelling[scenario.labels[client.train]], len(client.classes))
            for client in scenario.clients
        ]
    )


def study(data: Path, seed: int) -> list[dict]:
    config = configure("cifar100-domains", "factorized-peers", seed=seed)
    scenario = build_scenario_of(config, data)
    model = initial_model(config, 10, 3, labels_agree=False)
    mean, std = torch.tensor(scenario.mean), torch.tensor(scenario.std)
    layer, colours = [], []
    for some in scenario.images.split(1000):
        pixels = normalise(some.float() / 255, mean, std)
        layer.append(f.first_layer(model, model.state_dict(), pixels))
        colours.append(moments(pixels))
    layer_rows, colour_rows = torch.cat(layer), torch.cat(colours)
    found = []
    for setting, change in SETTINGS.items():
        dealt = build_scenario_of(configure("cifar100-domains", "factorized-peers", seed=seed, **change), data)
        assert torch.equal(dealt.images, scenario.images)
        domains = [client.domain for client in dealt.clients]
        same = [domains.count(domain) - 1 for domain in domains]
        levelled = by_clients(dealt, layer_rows, f.describe_images)
        row = {
            "seed": seed,
            "setting": setting,
            "chance": statistics.fmean(others / (len(domains) - 1) for others in same if others),
            "nearest": {
                "colours, every image alike (6 numbers)": nearest(
                    standardised(by_clients(dealt, colour_rows, plain)[:, :-2]), domains
                ),
                "first layer, every image alike (128)": nearest(
                    standardised(by_clients(dealt, layer_rows, plain)[:, :-2]), domains
                ),
                "first layer, classes levelled (128)": nearest(standardised(levelled[:, :-2]), domains),
                "the same in units of its noise (130)": nearest(-f.apart(levelled), domains),
            },
        }
        row["own_weight"], row["least_own_weight"] = own_weight(levelled, dealt.sizes, domains)
        pairs = f.apart(levelled)
        kin = torch.tensor([[one == other for other in domains] for one in domains])
        row["apart"] = {
            "own domain, median": float(pairs[kin & ~torch.eye(len(domains), dtype=torch.bool)].median()),
            "other domain, least": float(pairs[~kin].min()),
        }
        if not change:
            row["blur"] = {}
            for noise in BLURS:
                generator = torch.Generator().manual_seed(seed)
                hidden = torch.stack([f.blur(one, noise, 10.0, generator) for one in levelled])
                row["blur"][str(noise)] = {
                    "nearest": nearest(-f.apart(hidden), domains),
                    "own_weight": own_weight(hidden, dealt.sizes, domains)[0],
                }
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--out", type=Path, default=Path("results/fingerprints/matching.json"))
    arguments = parser.parse_args()
    rows = []
    for seed in map(int, arguments.seeds.split(",")):
        for row in study(arguments.data, seed):
            rows.append(row)
            shares = ", ".join(f"{share:.2f}" for share in row["nearest"].values())
            print(f"seed {seed}, {row['setting']}: {shares}; own weight {row['own_weight']:.3f}", flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"rows": rows, "environment": describe_environment(1, "cpu")}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
