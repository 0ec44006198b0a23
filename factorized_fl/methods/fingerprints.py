"""Fingerprints of clients' images, and the distances and weights that a server computes from them.

A client passes its training images once through the first layer of the untrained network, which all clients share. Its
fingerprint has a few hundred bytes: mean and log-variance of every channel, `noise` and `contrast`.

A client's classes weigh nearly the same however many images they have (n images weigh n / (n + 30)), so that clients of
one domain with different shares of its classes have similar fingerprints. The remaining difference is part of the
noise: the expected squared distance, summed over coordinates, of the fingerprint from that of a client with the same
classes in equal shares and unlimited images. So the squared distance of two fingerprints divided by the sum of their
noises is about 1 for clients of one domain, and large for clients of two. The contrast is the variance between the
client's classes, divided by the variance that chance alone would give.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from factorized_fl.core.errors import UserError
from factorized_fl.core.roles import LAYERS, find_head, layers, layers_under
from factorized_fl.core.stack import call_untied

HALF = 30.0  # images at which a class has half of its largest weight
NAME = "fingerprint"  # of the buffer that holds it among a client's tensors
_BATCH = 500
_DOUBT = 0.5  # about the deviation of a contrast by chance
UNKNOWN = 0.0  # contrast of a single class
_CLEAREST = 1000.0  # limit of a contrast; CIFAR-100's domains reach 55
_LEAST = 1e-12
_LARGEST = 100.0  # largest size of a log-variance that is plausible; the demo's are from -9 to 0
_OUTLIER = math.log(100)  # largest excess of a log-variance over the median; in the demo at most 0.9


class _Seen(Exception):
    """Raised after the first layer, so that the rest of the network is not computed."""


def make_room(model: nn.Module) -> nn.Module:
    """Give the model a buffer for the fingerprint: two numbers per channel of the first layer, and two more."""
    _, first = _first(model)
    assert isinstance(first, LAYERS)
    model.register_buffer(NAME, torch.zeros(2 * len(first.weight) + 2))
    return model


def _first(model: nn.Module) -> tuple[str, nn.Module]:
    """The name and the first of the layers before the classifier; the classifier's first if there are no others."""
    head = layers_under(model, find_head(model))
    return min(layers(model).items(), key=lambda item: item[0] in head)


@torch.no_grad()
def first_layer(model: nn.Module, tensors: dict[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """Mean and mean square of every channel of the first layer, image by image: [n, 2 C].

    Raises UserError if the network does not call its first layer once with one row for each image.
    """
    rows: list[torch.Tensor] = []
    name, first = _first(model)

    def look(module: nn.Module, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        if isinstance(module, nn.Linear):  # its channels are the last axis; tokens or places come before
            out = out.movedim(-1, 1)
        flat = out.double().flatten(2) if out.dim() > 2 else out.double().unsqueeze(2)
        rows.append(torch.cat([flat.mean(2), flat.square().mean(2)], 1))
        raise _Seen

    handle = first.register_forward_hook(look)
    try:
        for some in images.split(_BATCH):
            try:
                call_untied(model, tensors, some)
            except _Seen:
                continue
    finally:
        handle.remove()
    if sum(map(len, rows)) != len(images):
        raise UserError(
            f"The network's first layer '{name}' does not see the inputs one by one, so their statistics cannot be "
            "computed: register the layer that the network calls first before all others, or use another method."
        )
    return torch.cat(rows)


def describe_images(rows: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Mean, log-variance, noise and contrast of images with these moments [n, 2 C] and labels: [2 C + 2]."""
    counts = torch.bincount(labels, minlength=classes).to(rows)
    present = counts > 0
    sums = torch.zeros(classes, rows.shape[1], dtype=rows.dtype, device=rows.device).index_add_(0, labels, rows)
    own, counts = sums[present] / counts[present, None], counts[present]
    weights = counts / (counts + HALF)
    weights = weights / weights.sum()
    channels = rows.shape[1] // 2
    mean, square = (weights @ own).split(channels)
    variance = (square - mean.square()).clamp_min(_LEAST)

    def offset(moments: torch.Tensor) -> torch.Tensor:
        """How moments move the fingerprint, to first order, in its own units."""
        first, second = moments.split(channels, 1)
        moved = second - 2 * mean * first + mean.square() - variance
        return torch.cat([(first - mean) / variance.sqrt(), moved / variance], 1)

    offsets = offset(own)
    place = torch.cumsum(present, 0)[labels] - 1
    freedom = len(rows) - len(counts)
    if freedom > 0:
        inside = (offset(rows) - offsets[place]).square().sum() / freedom
    else:  # one image per class does not show how images of a class differ: take the variance of all images
        inside = offsets.square().sum() / max(1, len(rows) - 1)
    chance = inside / counts  # squared error of a class's mean
    spread = (weights * offsets.square().sum(1)).sum() / (1 - weights.square().sum()).clamp_min(_LEAST)
    by_chance = (weights * chance).sum().clamp_min(_LEAST)
    shares = (weights - 1 / classes).square().sum() + (classes - len(counts)) / classes**2
    noise = (weights.square() * chance).sum() + shares * (spread - by_chance).clamp_min(0)
    # Copies of one image, or a single one per class, leave no chance to divide by.
    contrast = (spread / by_chance).clamp(_LEAST, _CLEAREST) if len(counts) > 1 else torch.full_like(noise, UNKNOWN)
    return torch.cat([mean, variance.log(), torch.stack([noise, contrast])]).float()


def describe_privately(
    rows: torch.Tensor, noise: float, normal: Callable[[Sequence[int]], torch.Tensor]
) -> torch.Tensor:
    """A fingerprint of images with these moments [n, 2 C] and Gaussian noise, of the same length: [2 C + 2].

    In place of moments it holds the mean direction of the images: each image gives the means and root mean squares of
    its channels as a vector of length 1, so that one image changes the mean of n by at most 1 / n. `noise` is in units
    of that. Both halves are compared as means and log-variances are. Their entries are at most about 1, so the scales
    by which the first half is divided lie near 1. The declared noise is the variance of the mean and of what is added.
    Labels are not used, so the contrast is unknown.
    """
    channels = rows.shape[1] // 2
    first, second = rows.double().split(channels, 1)
    vectors = torch.nn.functional.normalize(torch.cat([first, second.clamp_min(0).sqrt()], 1).nan_to_num(), dim=1)
    deviation = noise / len(rows)
    found = vectors.sum(0) / len(rows) + deviation * normal([2 * channels]).to(vectors)
    added = 2 * channels * deviation**2
    length = (found.square().sum() - added).clamp(0, 1)  # of the mean without noise, as far as it can be known
    declared = (1 - length) / len(rows) + added
    return torch.cat([found, torch.stack([declared, declared.new_tensor(UNKNOWN)])]).float()


def blur(fingerprint: torch.Tensor, noise: float, clip: float, generator: torch.Generator) -> torch.Tensor:
    """Cut every coordinate off at `clip` and add Gaussian noise, both in the units in which images vary."""
    channels = (len(fingerprint) - 2) // 2
    mean, logs, rest = fingerprint.cpu().split([channels, channels, 2])
    scale = (logs / 2).exp()
    drawn = noise * torch.randn(2, channels, generator=generator)
    mean = ((mean / scale).clamp(-clip, clip) + drawn[0]) * scale
    logs = logs.clamp(-clip, clip) + drawn[1]
    rest = rest + torch.tensor([2 * channels * noise**2, 0.0])  # declared, so that others can judge distances
    return torch.cat([mean, logs, rest]).to(fingerprint)


def plausible(fingerprint: torch.Tensor) -> bool:
    """True if real images can have this fingerprint: no log-variance is extremely large or small."""
    channels = (len(fingerprint) - 2) // 2
    return bool((fingerprint[channels : 2 * channels].abs() <= _LARGEST).all())


def apart(fingerprints: torch.Tensor) -> torch.Tensor:
    """The squared distance of each pair over the sum of their noises, float64 [K, K]: about 1 in one domain."""
    prints = fingerprints.double().cpu()
    channels = (prints.shape[1] - 2) // 2
    mean, logs, rest = prints.split([channels, channels, 2], 1)
    # Otherwise a single client with an extreme variance could make all others look alike.
    highest = logs.sort(0).values[len(logs) // 2 :][:1] + _OUTLIER
    scale = logs.minimum(highest).exp().mean(0).clamp_min(_LEAST).sqrt()
    places = torch.cat([mean / scale, logs], 1)
    noise = rest[:, 0].clamp_min(0)
    square = (places[:, None] - places[None]).square().sum(2)
    return (square / (noise[:, None] + noise[None]).clamp_min(_LEAST)).nan_to_num(torch.inf, torch.inf)


def likeness(fingerprints: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
    """The likeness of each pair, [K, K]: 1 where noise explains the distance, down to 0; 0 before one is received."""
    alike = torch.eye(len(fingerprints), dtype=torch.float64)
    known = received.nonzero().flatten().cpu()
    found = torch.exp(-(apart(fingerprints[known.to(fingerprints.device)]) - 1).clamp_min(0))
    alike[known[:, None], known] = found.fill_diagonal_(1.0)
    return alike


def trust(fingerprints: torch.Tensor, alike: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """A factor of at most 1 for each client, float64 [K]: small if its contrast is far below that of similar clients.

    Labels drawn at random give a contrast of about 1; the excess over 1 grows with the number of images, so the excess
    per image is compared. All factors are about 1 where the first layer separates no client's classes. A client with a
    single class has no contrast and factor 1.
    """
    contrast, images = fingerprints[:, -1].double().cpu().nan_to_num(1.0), sizes.double().cpu()
    known = contrast != UNKNOWN
    excess = contrast.clamp(1, _CLEAREST) - 1
    per_image = (alike @ (known * excess)) / (alike @ (known * images)).clamp_min(_LEAST)
    trusted = ((excess + _DOUBT) / (images * per_image + _DOUBT)).clamp(max=1.0)
    return torch.where(known, trusted, 1.0)
