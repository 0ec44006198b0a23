import numpy as np
import pytest
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.data.embedded import digits, shapes, textures
from factorized_fl.data.sources import load


def test_three_domains() -> None:
    domains = load("embedded")
    assert [(d.name, len(d), len(d.classes)) for d in domains] == [
        ("digits", 1797, 10),
        ("shapes", 1800, 6),
        ("textures", 1800, 8),
    ]
    assert {tuple(d.images.shape[1:]) for d in domains} == {(3, 16, 16)}
    for domain in domains:
        counts = domain.labels.bincount()
        assert counts.min() > 0.9 * counts.max()


def test_the_domains_differ_in_brightness() -> None:
    paper, dark, muted = (d.images.float().mean() / 255 for d in load("embedded"))
    assert dark + 0.15 < muted < paper - 0.1


@pytest.mark.parametrize("domain", [digits, shapes, textures])
def test_the_seed_decides_every_pixel(domain) -> None:
    assert torch.equal(domain(8, 3, 1).images, domain(8, 3, 1).images)
    assert not torch.equal(domain(8, 3, 1).images, domain(8, 3, 2).images)


@pytest.mark.parametrize("domain", [digits, shapes, textures])
def test_size_and_channels(domain) -> None:
    assert domain(12, 1).images.shape[1:] == (1, 12, 12)
    with pytest.raises(UserError, match="1 or 3"):
        domain(12, 2)


def test_digits_are_upright_ink() -> None:
    """The mean picture of each class correlates best with the class's mean in the source."""
    from sklearn.datasets import load_digits

    source = load_digits()
    ours = digits(8, 1)
    assert ours.labels.tolist() == source.target.tolist()
    ink = 255 - ours.images[:, 0].numpy().astype(float)
    means = [np.stack([x[source.target == c].mean(0).ravel() for c in range(10)]) for x in (ink, source.images)]
    between = np.corrcoef(*means)[:10, 10:]
    assert between.argmax(0).tolist() == list(range(10))
    assert between.diagonal().min() > 0.9


def test_a_disc_is_filled_and_a_ring_is_not() -> None:
    drawn = shapes(32, 1)
    inner = drawn.images[:, 0, 12:20, 12:20].float().mean((1, 2))
    disc, ring = (inner[drawn.labels == drawn.classes.index(name)].mean() for name in ("disc", "ring"))
    assert disc > ring + 40


def test_stripes_run_as_they_are_called() -> None:
    drawn = textures(32, 1)
    pixels = drawn.images[:, 0].float()
    along_x, along_y = pixels.diff(dim=2).abs().mean((1, 2)), pixels.diff(dim=1).abs().mean((1, 2))
    horizontal, vertical = (drawn.labels == drawn.classes.index(name) for name in ("horizontal", "vertical"))
    assert (along_y > along_x)[horizontal].float().mean() > 0.95
    assert (along_x > along_y)[vertical].float().mean() > 0.95
