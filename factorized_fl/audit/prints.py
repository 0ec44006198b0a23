"""Attacks on fingerprints: a client's domain, its number of classes, its number of images.

The attacker makes clients of its own from images of the same kind, learns from their fingerprints, and guesses for the
fingerprints of other such clients, which have other images.
"""

from dataclasses import replace

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from factorized_fl.audit.estimates import Measure, agreement, mean_area
from factorized_fl.audit.observe import Source
from factorized_fl.core.seeds import numpy_rng
from factorized_fl.data.scenarios import Client
from factorized_fl.methods import fingerprints

CLIENTS = 120  # made clients, half of which the attacker learns from
_FEWEST = 8  # images of a made client
DOMAIN, CLASSES, SIZE = "domain", "number of classes above the middle", "number of images above the middle"


def read_fingerprints(source: Source) -> dict[str, Measure]:
    """Return how well each property is guessed, if the method has fingerprints of images; else nothing."""
    if not source.config.build_method().looks_at_images or source.scenario.labels.is_floating_point():
        return {}
    rng = numpy_rng(source.config.seed, "audit-fingerprints")
    made = [_make_client(source, half, rng) for half in (0, 1) for _ in range(CLIENTS // 2)]
    scenario = replace(source.scenario, clients=tuple(client for client, _ in made))
    config = replace(source.config, clients=len(made), clients_per_domain=())
    federation = replace(source, scenario=scenario, config=config).build(int(rng.integers(2**31)))
    vectors = [federation.clients.state.client(k)[fingerprints.NAME] for k in range(len(made))]
    prints = torch.stack(vectors).double().nan_to_num().numpy()
    domains = np.array([client.domain for client, _ in made])
    classes = np.array([count for _, count in made])
    sizes = np.array([len(client.train) for client, _ in made])
    half = len(made) // 2
    results = {}
    if len(set(domains[:half])) > 1:
        guessed = _learn(prints[:half], domains[:half]).predict(prints[half:])
        _, counts = np.unique(domains[half:], return_counts=True)
        results[DOMAIN] = agreement(list(guessed == domains[half:]), float(counts.max()) / half)
    for name, numbers in ((CLASSES, classes), (SIZE, sizes)):
        above = numbers > np.median(numbers)
        if len(set(above[:half])) == len(set(above[half:])) == 2:
            scores = _learn(prints[:half], above[:half]).decision_function(prints[half:])
            results[name] = mean_area({0: (scores[above[half:]], scores[~above[half:]])})
    return results


def _learn(prints: np.ndarray, answers: np.ndarray) -> LogisticRegression:
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000)).fit(prints, answers)


def _make_client(source: Source, half: int, rng: np.random.Generator) -> tuple[Client, int]:
    """Return a client with random classes and images of one domain, and its number of classes that have images.

    Images at even positions of the domain are the attacker's, those at odd positions the guessed clients'.
    """
    scenario = source.scenario
    like = scenario.clients[int(rng.integers(len(scenario.clients)))]
    same = [client for client in scenario.clients if client.domain == like.domain]
    pool = torch.cat([torch.cat([client.train, client.validation, client.test]) for client in same]).unique()[half::2]
    labels = scenario.labels[pool]
    present = labels.unique()
    chosen = present[torch.from_numpy(rng.permutation(len(present))[: int(rng.integers(1, len(present) + 1))])]
    pool = pool[torch.isin(labels, chosen)]
    most = max(_FEWEST, min(len(pool), 4 * int(source.scenario.sizes.max())))
    size = int(np.exp(rng.uniform(np.log(_FEWEST), np.log(most + 1))))
    train = pool[torch.from_numpy(rng.permutation(len(pool))[:size])].sort().values
    return replace(like, train=train, holdout=train[:0], seat=None), len(scenario.labels[train].unique())
