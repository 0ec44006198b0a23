"""Factorised layers on a GPU; these tests avoid hypothesis, which a GPU machine may lack."""

import pytest
import torch
from torch import nn

from factorized_fl import factorize
from factorized_fl.nn.factorized import RankOneSparse

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_a_cpu_generator_draws_the_same_factors_for_a_gpu() -> None:
    here, there = (
        factorize(
            nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4)).to(device),
            generator=torch.Generator().manual_seed(3),
        )
        for device in ("cpu", "cuda")
    )
    pairs = [
        (mine, other)
        for mine, other in zip(here.modules(), there.modules(), strict=True)
        if isinstance(mine, RankOneSparse)
    ]
    assert len(pairs) == 2
    for mine, other in pairs:
        assert other.u.is_cuda
        assert torch.equal(mine.u, other.u.cpu())
        assert torch.equal(mine.v, other.v.cpu())
