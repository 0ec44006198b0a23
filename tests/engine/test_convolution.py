"""Convolutions lane by lane, and their gradients, against PyTorch's own."""

import pytest
import torch
from torch.nn.functional import conv2d

from factorized_fl.engine.resnet9_cuda.convolution import LaneConvolution

LANES, BATCH, SIZE, IN, OUT = 2, 3, 8, 4, 6


def in_blocks(x: torch.Tensor) -> torch.Tensor:
    """Return the pixels in an order in which the four of each 2 x 2 block are adjacent."""
    return x.view(LANES, BATCH, SIZE // 2, 2, SIZE // 2, 2, IN).transpose(3, 4).reshape(x.shape)


@pytest.mark.parametrize(("taps", "stride", "padding"), [(3, 1, 1), (3, 1, 0), (5, 2, 2)])
def test_lanes_match_separate_convolutions(taps: int, stride: int, padding: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(LANES, BATCH, SIZE, SIZE, IN, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(LANES, OUT, taps, taps, IN, generator=generator, dtype=torch.float64, requires_grad=True)
    ours = LaneConvolution.apply(x, weight, stride, padding)
    theirs = torch.stack(
        [
            conv2d(a.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), stride=stride, padding=padding).permute(0, 2, 3, 1)
            for a, w in zip(x, weight, strict=True)
        ]
    )
    assert torch.allclose(ours, theirs)
    dy = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    dx, dweight = torch.autograd.grad(ours, [x, weight], dy)
    expected_dx, expected_dweight = torch.autograd.grad(theirs, [x, weight], dy)
    assert torch.allclose(dweight, expected_dweight)
    assert torch.allclose(dx, expected_dx if stride == 1 else in_blocks(expected_dx))
