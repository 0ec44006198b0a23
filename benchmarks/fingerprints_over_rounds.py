"""How well small vectors of a client in training find its true peers, round by round, on five domains of CIFAR-100.

    python benchmarks/fingerprints_over_rounds.py --data DIR [--seeds 1,2] [--rounds 1,2,5,15,30]
                                                  [--set key=value ...] [--out results/fingerprints/over-rounds.json]

For each candidate vector: the share of a client's three nearest neighbours that belong to its own domain, while
Factorized-FL trains. Chance would give 3/19.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from fingerprints import nearest, standardised

from factorized_fl.api import configure, run
from factorized_fl.core.mixing import cosine
from factorized_fl.core.toml_text import parse_setting
from factorized_fl.nn import last_body_v
from factorized_fl.results.environment import describe_environment
from factorized_fl.simulate.build import Federation


class Candidates:
    """An observer that compares the candidate vectors after some rounds."""

    def __init__(self, rounds: Sequence[int]) -> None:
        self.rounds = rounds
        self.rows: list[dict] = []

    def started(self, federation: Federation, done: int) -> None:
        self.federation = federation
        common = federation.clients.state.common
        self.initial = {name: tensor.clone() for name, tensor in common.items() if tensor.is_floating_point()}
        self.domains = [client.domain for client in federation.scenario.clients]

    def client_done(self, round_number: int, client: int) -> None: ...

    def round_done(self, round_number: int, records: Sequence[dict]) -> None:
        if round_number in self.rounds:
            row = {name: (size, nearest(alike.cpu(), self.domains)) for name, size, alike in self.look()}
            self.rows.append({"round": round_number, "nearest": {name: share for name, (_, share) in row.items()}})
            self.sizes = {name: size for name, (size, _) in row.items()}

    def look(self):
        """Name, numbers to send and closeness [K, K] of each candidate."""
        common, roles = self.federation.clients.state.common, self.federation.roles
        drift = {name: common[name] - start for name, start in self.initial.items()}

        def joined(tensors: dict[str, torch.Tensor], *kinds: str) -> torch.Tensor:
            body = [n for n, role in roles.items() if role.kind in kinds and not role.head]
            return torch.cat([tensors[n].flatten(1) for n in body], 1)

        v = common[last_body_v(roles)].flatten(1)
        yield "v before the classifier (the paper)", v.shape[1], cosine(v)
        yield "its drift", v.shape[1], cosine(drift[last_body_v(roles)].flatten(1))
        for kind in "uv":
            values = joined(drift, kind)
            yield f"drift of every {kind}, standardised", values.shape[1], standardised(values)
        mu = drift[next(n for n, role in roles.items() if role.kind == "mu")].flatten(1)
        yield "drift of the first layer's mu, standardised", mu.shape[1], standardised(mu)
        norms = joined(drift, "norm")
        yield "drift of every normalisation's affine terms, standardised", norms.shape[1], standardised(norms)
        u, (first, *deeper) = joined(drift, "u"), self.running()
        both = standardised(first) + standardised(u)
        yield "running statistics of the first layer, standardised", first.shape[1], standardised(first)
        every = torch.cat([first, *deeper], 1)
        yield "running statistics of every layer, standardised", every.shape[1], standardised(every)
        yield "running statistics of the first layer and drift of u", first.shape[1] + u.shape[1], both
        whole = joined(drift, "u", "v", "mu")
        yield "the whole update", whole.shape[1], cosine(whole)

    def running(self) -> list[torch.Tensor]:
        """Running mean and log-variance of every normalisation, [K, 2 C] each."""
        common = self.federation.clients.state.common
        means = [name for name in common if name.endswith("running_mean")]
        return [
            torch.cat([common[name], common[name.replace("_mean", "_var")].clamp_min(1e-12).log()], 1) for name in means
        ]


def study(data: Path, seed: int, rounds: Sequence[int], settings: dict) -> dict:
    changes = {"seed": seed, "rounds": max(rounds), **settings}
    watch = Candidates(rounds)
    with tempfile.TemporaryDirectory() as folder:
        run(configure("cifar100-domains", "factorized-fl", **changes), Path(folder), data=data, observers=[watch])
    return {"seed": seed, "numbers": watch.sizes, "rows": watch.rows}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--rounds", default="1,2,5,15,30")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path, default=Path("results/fingerprints/over-rounds.json"))
    arguments = parser.parse_args()
    rounds = [int(word) for word in arguments.rounds.split(",")]
    settings = dict(parse_setting(text) for text in arguments.set)
    found = [study(arguments.data, int(seed), rounds, settings) for seed in arguments.seeds.split(",")]
    for name, size in found[0]["numbers"].items():
        means = [statistics.fmean(one["rows"][index]["nearest"][name] for one in found) for index in range(len(rounds))]
        print(f"{size:8}  " + "  ".join(f"{mean:.2f}" for mean in means) + f"  {name}", flush=True)
    environment = describe_environment(1, "cuda" if torch.cuda.is_available() else "cpu")
    result = {"rounds": rounds, "chance": 3 / 19, "settings": settings, "seeds": found, "environment": environment}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
