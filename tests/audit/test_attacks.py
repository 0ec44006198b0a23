"""Senders, domains, pictures and fingerprints."""

import numpy as np
import torch
from torch import nn

from factorized_fl.api import configure
from factorized_fl.audit.observe import Seen, Source
from factorized_fl.audit.pictures import invert
from factorized_fl.audit.prints import DOMAIN, read_fingerprints
from factorized_fl.audit.updates import guess_domains, guess_senders
from factorized_fl.simulate.scenario import build_scenario_of


def seen(*rounds):
    """Updates of one tensor, by round and client."""
    uploads = [{k: {"w": torch.tensor(vector)} for k, vector in enumerate(of_round)} for of_round in rounds]
    return Seen([], uploads=uploads)


def test_senders_with_a_direction_of_their_own_are_found():
    first, second = [[3.0, 0.0], [0.0, 3.0], [-3.0, -3.0]], [[2.0, 0.1], [0.1, 2.0], [-2.0, -2.0]]
    found = guess_senders(seen(first, second))
    assert (found.value, found.count, found.chance) == (1.0, 3, 1 / 3)
    assert guess_senders(seen(first, second[1:] + second[:1])).value == 0.0
    assert guess_senders(seen(first)) is None


def test_domains_of_updates_by_hand():
    scenario = build_scenario_of(configure("demo", "fedavg", clients=3, clients_per_domain=[1, 1, 1]))
    same, other = scenario.clients[0], scenario.clients[1]
    pairs = Source(None, type(scenario)(**{**vars(scenario), "clients": (same, same, other, other)})).scenario
    found = guess_domains(seen([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0], [-0.9, -0.1]]), pairs)
    assert (found.value, found.chance) == (1.0, 1 / 3)
    assert guess_domains(seen([[1.0, 0.0], [-1.0, 0.0], [0.9, 0.1], [-0.9, -0.1]]), pairs).value == 0.0


def test_a_picture_is_reconstructed_from_the_gradient_of_a_smooth_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.Sigmoid(), nn.Linear(32, 3))
    truth, label = torch.randn(1, 3, 4, 4), torch.tensor([1])
    loss = nn.functional.cross_entropy(model(truth), label)
    names = [name for name, _ in model.named_parameters()]
    update = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    start = {name: p.detach() for name, p in model.named_parameters()}
    found = invert(model, start, update, label, (3, 4, 4), seed=3)
    correlation = np.corrcoef(found.flatten().numpy(), truth.flatten().numpy())[0, 1]
    assert correlation > 0.9
    nothing = {name: torch.zeros_like(part) for name, part in update.items()}
    assert invert(model, start, nothing, label, (3, 4, 4), seed=3) is None


def test_fingerprints_tell_the_domain_and_other_methods_send_none():
    config = configure("demo", "factorized-peers", seed=1)
    found = read_fingerprints(Source(config, build_scenario_of(config)))
    assert found[DOMAIN].low > 0.8 > 0.5 > found[DOMAIN].chance
    config = configure("demo", "fedavg", seed=1)
    assert read_fingerprints(Source(config, build_scenario_of(config))) == {}
