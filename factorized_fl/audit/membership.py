"""Membership inference: was this image among a client's training images?

The attack is a likelihood ratio with shadow clients (Carlini et al., 2022). The attacker knows the image and its label,
the configuration and its seeds, and has images of the same kind, so it can repeat the run with other training images.
In each of these shadow runs every client trains on a random part of its pool: its own training images and as many
others. For each image the attacker computes a statistic of the tensors that it sees, fits a normal distribution to the
shadow runs whose client trained on the image and another one to the rest, and scores the audited run by the ratio of
the two densities.

The statistic has two numbers: the scaled confidence in the label, log(p / (1 - p)), and the fall of the loss over the
round. Where only some tensors are visible, the attacker puts them into a model of its own: the same client's in one
shadow run, which is set aside.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from factorized_fl.audit.estimates import Measure, Scores, found_at, mean_area
from factorized_fl.audit.observe import Seen, Source, observe
from factorized_fl.core.errors import UserError
from factorized_fl.core.seeds import numpy_rng
from factorized_fl.core.stack import call_untied
from factorized_fl.core.views import Tensors
from factorized_fl.data.scenarios import Scenario
from factorized_fl.simulate.networks import initial_models, model_inputs

MODEL, COORDINATOR, PEER = "the client's own model", "the coordinator", "another client"
VIEWS = (COORDINATOR, PEER, MODEL)
FEWEST_SHADOWS = 4
FALSE_SHARE = 0.05  # share of other images that may pass as members where found members are counted
_RIDGE = 1e-3  # added to variances, relative to their mean


@dataclass(frozen=True)
class Pools:
    """The images of each client with which membership is tested; no image is in two pools."""

    images: list[torch.Tensor]  # positions in the scenario's images: members first
    members: list[int]  # how many of them the client trained on


@dataclass(frozen=True)
class Result:
    """How well membership is inferred from one view."""

    view: str
    auc: Measure
    found: Measure


def make_pools(scenario: Scenario, seed: int) -> Pools:
    """Return a pool for each client: its training images, and about as many that no client trains on.

    Raises UserError if a client has fewer than two images of either kind.
    """
    used = torch.zeros(len(scenario.images), dtype=torch.bool)
    for client in scenario.clients:
        used[client.train] = True
    free: dict[str, list[int]] = {}
    for client in scenario.clients:
        mine = torch.cat([client.test, client.validation]).unique()
        free.setdefault(client.domain, []).extend(mine[~used[mine]].tolist())
        used[mine] = True
    sharing: dict[str, list[int]] = {}
    for k, client in enumerate(scenario.clients):
        sharing.setdefault(client.domain, []).append(k)
    images, members = [], []
    for k, client in enumerate(scenario.clients):
        order = numpy_rng(seed, "audit-pools", client.domain).permutation(sorted(free[client.domain]))
        own = order[sharing[client.domain].index(k) :: len(sharing[client.domain])][: len(client.train)]
        if min(len(own), len(client.train)) < 2:
            raise UserError(
                f"{client.name} has {len(client.train)} training images and {len(own)} test images of its own: "
                "membership inference needs at least two of each."
            )
        images.append(torch.cat([client.train, torch.from_numpy(np.sort(own))]))
        members.append(len(client.train))
    return Pools(images, members)


def draw_members(pools: Pools, seed: int, shadow: int) -> list[torch.Tensor]:
    """Return for each client which images of its pool it trains on in a shadow run: bool [n], as many as in the run."""
    drawn = []
    for k, (images, count) in enumerate(zip(pools.images, pools.members, strict=True)):
        chosen = torch.zeros(len(images), dtype=torch.bool)
        chosen[torch.from_numpy(numpy_rng(seed, "audit-shadow", shadow, k).permutation(len(images))[:count])] = True
        drawn.append(chosen)
    return drawn


def shadow_source(source: Source, pools: Pools, members: list[torch.Tensor]) -> Source:
    """Return the source of a shadow run: each client's training images are the chosen ones of its pool."""
    clients = [
        replace(client, train=images[chosen].sort().values)
        for client, images, chosen in zip(source.scenario.clients, pools.images, members, strict=True)
    ]
    return replace(source, scenario=replace(source.scenario, clients=tuple(clients)))


class Probe:
    """Computes the statistics of images under the tensors that a party sees, completed by the attacker's own."""

    def __init__(self, source: Source, pools: Pools, completed: Seen) -> None:
        self.scenario, self.pools, self.own = source.scenario, pools, completed.final
        self.models: dict[int, nn.Module] = initial_models(source.config, source.scenario, source.factory)

    @torch.no_grad()
    def losses(self, k: int, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss and the scaled confidence of each image of client k's pool."""
        model = self.models[len(self.scenario.clients[k].classes)].eval()
        complete = self.own[k] | tensors
        positions = self.pools.images[k]
        outputs = []
        for some in positions.split(500):
            outputs.append(call_untied(model, complete, model_inputs(self.scenario, self.scenario.images[some])))
        logits = torch.cat(outputs).double()
        labels = self.scenario.targets(k, positions)
        loss = cross_entropy(logits, labels, reduction="none")
        others = logits.scatter(1, labels[:, None], -torch.inf)
        confidence = logits.gather(1, labels[:, None])[:, 0] - others.logsumexp(1)
        return loss, confidence.clamp(-50, 50)

    def statistics(self, view: str, seen: Seen, k: int) -> np.ndarray | None:
        """Return the two numbers of each image, [n, 2]; None where this view holds no tensor."""
        last = len(seen.uploads) - 1
        if view == MODEL:
            after, before = seen.final[k], seen.final[k] | seen.before(last, k)
        elif view == COORDINATOR:
            after, before = seen.uploads[last].get(k, {}), seen.before(last, k)
        else:
            receiver = _receiver(seen, k, last)
            if receiver is None:
                return None
            after = seen.downloads[last].get(receiver, {})
            before = seen.downloads[last - 1].get(receiver, {}) if last else {}
        if not after:
            return None
        loss, confidence = self.losses(k, after)
        fall = self.losses(k, before)[0] - loss if before else torch.zeros_like(loss)
        return torch.stack([confidence, fall.clamp(-50, 50)], 1).numpy()


def _receiver(seen: Seen, k: int, round_index: int) -> int | None:
    """Return the other client with the largest weight of client k in its download; None if all are 0."""
    weights = seen.weights[round_index]
    if weights is None:
        return None
    column = weights[:, k].clone()
    column[k] = 0
    best = int(column.argmax())
    return best if column[best] > 0 else None


def infer_membership(
    source: Source,
    target: Seen,
    pools: Pools,
    *,
    shadows: int,
    hides_uploads: bool = False,
    done: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Attack the run `target` with so many shadow runs; return a result for each view that holds a tensor.

    With `hides_uploads` the coordinator receives ciphertexts, and its view is left out.
    """
    if shadows < FEWEST_SHADOWS:
        raise UserError(f"shadows = {shadows} is too few to fit distributions: give {FEWEST_SHADOWS} or more.")
    seed, quick = source.config.seed, source.tested_last()
    views = [view for view in VIEWS if not (hides_uploads and view == COORDINATOR)]
    probe = Probe(source, pools, observe(shadow_source(quick, pools, draw_members(pools, seed, 0)), _noise(seed, 0)))
    done()
    drawn: list[list[torch.Tensor]] = []
    found: dict[str, dict[int, list[np.ndarray | None]]] = {v: {k: [] for k in range(len(pools.images))} for v in views}
    for shadow in range(1, shadows + 1):
        members = draw_members(pools, seed, shadow)
        seen = observe(shadow_source(quick, pools, members), _noise(seed, shadow))
        drawn.append(members)
        for view in views:
            for k in found[view]:
                found[view][k].append(probe.statistics(view, seen, k))
        done()
    results = []
    for view in views:
        scores = {}
        for k, of_shadows in found[view].items():
            own = probe.statistics(view, target, k)
            seen_by = [(stat, of[k]) for stat, of in zip(of_shadows, drawn, strict=True) if stat is not None]
            if own is not None and len(seen_by) >= FEWEST_SHADOWS:
                ratio = membership_scores(own, np.stack([s for s, _ in seen_by]), torch.stack([m for _, m in seen_by]))
                scores[k] = ratio[: pools.members[k]], ratio[pools.members[k] :]
        if scores:
            results.append(Result(view, mean_area(scores), found_at(scores, FALSE_SHARE)))
    return results


def _noise(seed: int, shadow: int) -> int:
    """Return a seed for the noise of a shadow run: an attacker does not know the noise of the audited run."""
    return int(numpy_rng(seed, "audit-noise", shadow).integers(2**31))


def membership_scores(own: np.ndarray, shadows: np.ndarray, members: torch.Tensor) -> Scores:
    """Return log p(own | member) - log p(own | not) of each image, for statistics [n, d] and those of S shadows.

    `shadows` is [S, n, d] and `members` bool [S, n]. Each image has a mean of its own for either case; the covariance
    is that of all images around these means, since few shadows cannot show each image's own. An image whose shadows
    all fall on one side takes the mean of the other side over all images.
    """
    inside = members.numpy().astype(float)
    means = []
    for chosen in (inside, 1 - inside):
        weights = chosen[:, :, None]
        total = weights.sum(0)
        whole = (weights * shadows).sum((0, 1)) / max(weights.sum(), 1.0)
        means.append(np.where(total > 0, (weights * shadows).sum(0) / np.maximum(total, 1.0), whole))
    centred = shadows - np.where(inside[:, :, None] > 0, means[0], means[1])
    flat = centred.reshape(-1, centred.shape[-1])
    covariance = flat.T @ flat / len(flat)
    covariance += _RIDGE * (np.trace(covariance) / len(covariance) + 1e-12) * np.eye(len(covariance))
    inverse = np.linalg.inv(covariance)

    def distance(mean: np.ndarray) -> np.ndarray:
        off = own - mean
        return np.einsum("nd,de,ne->n", off, inverse, off)

    return (distance(means[1]) - distance(means[0])) / 2
