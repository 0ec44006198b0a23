import colorsys

import pytest
import torch

from factorized_fl.tasks.augment import DRAWS, TRIES, _turn_hue, augment, draw, normalise

REST = 2 * TRIES


def quiet(count: int = 1) -> torch.Tensor:
    """Return draws that leave an image unchanged: no crop, no flip, no jitter, no greyscale."""
    draws = torch.zeros(count, DRAWS)
    draws[:, :TRIES] = 1.0  # the largest area
    draws[:, TRIES:REST] = 0.5  # a square
    draws[:, REST + 2] = 0.9  # no flip
    draws[:, REST + 7] = 0.9  # no jitter
    draws[:, REST + 9] = 0.9  # no greyscale
    return draws


def picture(count: int = 1, size: int = 8, channels: int = 3) -> torch.Tensor:
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8)


def test_quiet_draws_change_nothing() -> None:
    images = picture(5)
    assert torch.allclose(augment(images, quiet(5)), images.float() / 255, atol=1e-6)


def test_flip() -> None:
    images, draws = picture(2), quiet(2)
    draws[1, REST + 2] = 0.1
    out = augment(images, draws)
    assert torch.allclose(out[0], images[0].float() / 255, atol=1e-6)
    assert torch.allclose(out[1], images[1].flip(-1).float() / 255, atol=1e-6)


def test_crop_is_what_bilinear_resizing_of_the_box_gives() -> None:
    images, draws = picture(1, 8), quiet()
    draws[0, :TRIES] = (0.25 - 0.08) / 0.92  # a quarter of the area: 4 x 4
    draws[0, REST] = 0.45  # floor(0.45 * 5) = row 2
    draws[0, REST + 1] = 0.99  # column 4
    box = images[:, :, 2:6, 4:8].float() / 255
    expected = torch.nn.functional.interpolate(box, size=8, mode="bilinear", align_corners=False)
    assert torch.allclose(augment(images, draws), expected, atol=1e-5)


def test_first_fitting_attempt_counts_and_none_means_the_whole_image() -> None:
    images, draws = picture(2, 8), quiet(2)
    draws[:, TRIES:REST] = 0.0  # ratio 3/4 at full area: 7 x 9 does not fit
    draws[1, 3] = (0.25 - 0.08) / 0.92  # the fourth attempt: w = round(sqrt(16 * 3/4)) = 3, h = round(4.6) = 5
    out = augment(images, draws)
    assert torch.allclose(out[0], images[0].float() / 255, atol=1e-5)
    expected = torch.nn.functional.interpolate(images[1:, :, 0:5, 0:3].float() / 255, size=8, mode="bilinear")
    assert torch.allclose(out[1:], expected, atol=1e-5)


@pytest.mark.parametrize("position", range(3))
def test_single_jitter_operations(position: int) -> None:
    """Brightness, contrast, saturation at their upper end, the other factors neutral."""
    images, draws = picture(1), quiet()
    draws[0, REST + 3 : REST + 7] = 0.5
    draws[0, REST + 3 + position] = 1.0
    draws[0, REST + 7] = 0.0
    pixels = images.float() / 255
    weights = torch.tensor([0.2989, 0.587, 0.114]).view(1, 3, 1, 1)
    luma = (pixels * weights).sum(1, keepdim=True)
    factor = (1.4, 1.4, 1.2)[position]
    target = (torch.zeros(1), luma.mean(), luma)[position]
    expected = (factor * pixels + (1 - factor) * target).clamp(0, 1)
    assert torch.allclose(augment(images, draws), expected, atol=1e-5)


def test_order_of_operations_matters_and_is_each_images_own() -> None:
    images, draws = picture(1).expand(24, -1, -1, -1), quiet(24)
    draws[:, REST + 3 : REST + 7] = 1.0
    draws[:, REST + 7] = 0.0
    draws[:, REST + 8] = (torch.arange(24) + 0.5) / 24
    out = augment(images, draws)
    assert len({tuple(image.flatten().tolist()) for image in out}) > 6


def test_hue_agrees_with_the_standard_library() -> None:
    pixels = torch.rand(1, 3, 4, 5)
    out = _turn_hue(pixels, torch.tensor([0.07]))
    for y in range(4):
        for x in range(5):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixels[0, :, y, x].tolist())
            expected = colorsys.hsv_to_rgb((hue + 0.07) % 1, saturation, value)
            assert out[0, :, y, x].tolist() == pytest.approx(expected, abs=1e-5)


def test_greyscale_leaves_equal_channels() -> None:
    draws = quiet()
    draws[0, REST + 9] = 0.1
    out = augment(picture(), draws)
    assert torch.equal(out[:, 0], out[:, 1])
    assert torch.equal(out[:, 0], out[:, 2])


def test_random_draws_stay_in_range_and_grey_images_work() -> None:
    generator = torch.Generator().manual_seed(3)
    for channels in (1, 3):
        out = augment(picture(64, 16, channels), draw(64, generator))
        assert out.shape == (64, channels, 16, 16)
        assert out.min() >= -1e-6
        assert out.max() <= 1 + 1e-6


def test_normalise() -> None:
    images = torch.tensor([0.5, 1.0]).view(1, 2, 1, 1)
    out = normalise(images, torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.5]))
    assert out.flatten().tolist() == [0.0, 1.0]
