"""Reconstruction of a training picture from an update of the first round (Zhu et al., 2019; Geiping et al., 2020).

In the first round all clients begin with public tensors, so the attacker knows the whole model. It looks for pictures
whose gradient points along the update, and knows their labels. Two cases are attacked: a client that trained for one
step on a single picture, which is the attacker's best case (two pictures where the network has BatchNorm, which needs
two), and the round as it was. A reconstruction is judged by how much better it correlates with the true picture than
with other pictures of the client: the area under the ROC curve, 0.5 by chance.
"""

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from factorized_fl.audit.estimates import Measure, mean_area
from factorized_fl.audit.observe import Seen, Source, observe
from factorized_fl.core.seeds import numpy_rng, torch_rng
from factorized_fl.core.stack import call_untied
from factorized_fl.core.views import Tensors
from factorized_fl.simulate.networks import initial_models, model_inputs

LARGEST = 300_000  # parameters of a network that is attacked
STEPS, SMOOTHNESS, RATE = 600, 1e-3, 0.1
ONE_STEP, AS_IT_WAS = "one step on one or two pictures", "the first round as it was"
_OTHERS = 50  # pictures of the client with which a reconstruction is compared


def reconstruct(
    source: Source, target: Seen, *, pictures: int, done: Callable[[], None] = lambda: None
) -> dict[str, Measure]:
    """Return how well pictures of so many clients are recognised in their reconstructions, for both cases.

    Empty for networks and data that are not attacked: large networks, and inputs that are not pictures of classes.
    """
    scenario = source.scenario
    if not pictures or scenario.arrays or scenario.labels.is_floating_point() or not target.uploads[0]:
        return {}
    models = initial_models(source.config, scenario, source.factory)
    if sum(p.numel() for p in next(iter(models.values())).parameters()) > LARGEST:
        return {}
    rng = numpy_rng(source.config.seed, "audit-pictures")
    senders = sorted(target.uploads[0])
    attacked = [senders[int(i)] for i in rng.permutation(len(senders))[:pictures]]
    norms = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in next(iter(models.values())).modules())
    batch = 2 if norms else 1
    single = _single(source, attacked, batch, rng)
    seen = {ONE_STEP: observe(single.tested_last(), int(rng.integers(2**31))), AS_IT_WAS: target}
    results = {}
    for case, of_case in seen.items():
        scores = {}
        for place, k in enumerate(attacked):
            model = copy.deepcopy(models[len(scenario.clients[k].classes)])
            truth = (single if case == ONE_STEP else source).scenario.clients[k].train
            labels = scenario.targets(k, truth[:batch])
            update = {n: of_case.initial[k][n] - sent for n, sent in of_case.uploads[0].get(k, {}).items()}
            shape = tuple(scenario.images.shape[1:])
            found = invert(model, of_case.initial[k], update, labels, shape, source.config.seed + place)
            if found is not None:
                scores[k] = _recognised(source, found, truth, rng)
            done()
        if scores:
            results[case] = mean_area(scores)
    return results


def _single(source: Source, attacked: list[int], batch: int, rng: np.random.Generator) -> Source:
    """Return a run of one round in which each attacked client trains for one step on few pictures."""
    clients = list(source.scenario.clients)
    for k in attacked:
        train = clients[k].train
        clients[k] = replace(clients[k], train=train[torch.from_numpy(rng.permutation(len(train))[:batch])])
    config = replace(source.config, rounds=1, epochs=1, batch_size=2, augment="none")
    return replace(source, config=config, scenario=replace(source.scenario, clients=tuple(clients)))


def invert(
    model: nn.Module, start: Tensors, update: Tensors, labels: Tensor, shape: tuple[int, ...], seed: int
) -> Tensor | None:
    """Return the pictures [n, C, H, W] whose gradient is most similar to an update; None if nothing was updated."""
    model.train()
    own = dict(model.named_parameters())
    names = [name for name in update if name in own and own[name].requires_grad and bool(update[name].any())]
    if not names:
        return None
    points = {name: start[name].clone().requires_grad_(name in names) for name in start}
    aim = torch.cat([update[name].flatten() for name in names])
    aim = aim / aim.norm()
    generator = torch_rng(seed, "audit-picture")
    picture = torch.randn(len(labels), *shape, generator=generator).mul_(0.1).requires_grad_()
    optimizer = torch.optim.Adam([picture], lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        fresh = {n: t if n in own else t.clone() for n, t in points.items()}  # statistics are updated in place
        loss = cross_entropy(call_untied(model, fresh, picture), labels)
        gradients = torch.autograd.grad(loss, [points[name] for name in names], create_graph=True)
        found = torch.cat([g.flatten() for g in gradients])
        distance = 1 - (found @ aim) / found.norm().clamp_min(1e-12)
        smooth = picture.diff(dim=-1).abs().mean() + picture.diff(dim=-2).abs().mean()
        optimizer.zero_grad()
        (distance + SMOOTHNESS * smooth).backward(inputs=[picture])
        optimizer.step()
        schedule.step()
    return picture.detach()


def _recognised(
    source: Source, found: Tensor, truth: Tensor, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return how a reconstruction correlates with the true pictures and with others of the same domain."""
    k = next(k for k, client in enumerate(source.scenario.clients) if bool(torch.isin(truth, client.train).all()))
    client = source.scenario.clients[k]
    others = torch.cat([client.test, client.validation]).unique()
    others = others[~torch.isin(others, truth)]
    others = others[torch.from_numpy(rng.permutation(len(others))[:_OTHERS])]
    return _correlations(source, found, truth), _correlations(source, found, others)


def _correlations(source: Source, found: Tensor, positions: Tensor) -> np.ndarray:
    """Return each picture's correlation with the reconstruction that is most like it."""
    pictures = model_inputs(source.scenario, source.scenario.images[positions])
    unit = [
        normalize(each.flatten(1).double() - each.flatten(1).double().mean(1, keepdim=True))
        for each in (pictures, found)
    ]
    return (unit[0] @ unit[1].T).amax(1).numpy()
