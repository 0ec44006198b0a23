"""The Triton kernels against PyTorch. Without a GPU they run in Triton's interpreter, which is slow but exact."""

import os

import pytest
import torch
from torch.nn.functional import batch_norm, max_pool2d, pad

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytest.importorskip("triton", reason="Triton is not installed (PyTorch's CUDA builds bring it)")

from factorized_fl.engine.resnet9_cuda import norm_kernels as k
from factorized_fl.engine.resnet9_cuda.augment import make_batch, plain_row
from factorized_fl.engine.resnet9_cuda.first_layer import ONE, PATCH, FirstLayer, convolve_and_normalise, make_patches
from factorized_fl.engine.resnet9_cuda.norm import PACKED, STACKED, NormReLU, Shape
from factorized_fl.engine.resnet9_cuda.stacked import supported
from factorized_fl.engine.resnet9_cuda.weights import LaidOut, RankOneWeight
from factorized_fl.nn.models import build_model
from factorized_fl.tasks.augment import augment, draw, normalise, plan_augmentation

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The 16-bit type and its tolerance; the interpreter cannot multiply bfloat16.
HALF = (torch.bfloat16, 1e-2) if DEVICE == "cuda" else (torch.float16, 1e-3)
G, C, B, H, W = 3, 64, 2, 4, 6


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return float((ours - theirs).detach().norm()) <= 2e-6 * float(theirs.detach().norm())


def expected(gamma, beta, x, mean, variance, residual, shape: Shape) -> torch.Tensor:
    lanes = x if shape.source == PACKED else x.view(shape.lanes, shape.batch, H, W, shape.channels)
    packed = lanes if shape.source == PACKED else lanes.permute(1, 2, 3, 0, 4).flatten(3)
    flat = [t.view(-1) for t in (mean, variance, gamma, beta)]
    y = batch_norm(packed.permute(0, 3, 1, 2), *flat, True, 0.1, 1e-5).relu()
    y = (max_pool2d(y, 2) if shape.mode == k.POOL else y).permute(0, 2, 3, 1)
    y = y if residual is None else y + residual
    return y if shape.result == PACKED else y.unflatten(3, (shape.lanes, -1)).permute(3, 0, 1, 2, 4)


@pytest.mark.parametrize(
    ("mode", "source", "result", "residual"),
    [
        (k.PLAIN, PACKED, PACKED, False),
        (k.PLAIN, PACKED, PACKED, True),
        (k.PLAIN, STACKED, STACKED, False),
        (k.PLAIN, STACKED, PACKED, False),
        (k.PLAIN, PACKED, STACKED, True),
        (k.POOL, STACKED, PACKED, False),
        (k.POOL, PACKED, PACKED, False),
    ],
)
def test_normalisation_and_its_gradients(mode: int, source: str, result: str, residual: bool) -> None:
    shape = Shape(B, H, W, G, C, mode, source, result)
    size = (B, H, W, G * C) if source == PACKED else (G, B, H, W, C)
    base = 3 * torch.randn(size, device=DEVICE) + 1
    affine = torch.rand(G, C, device=DEVICE) + 0.5, torch.randn(G, C, device=DEVICE)
    added = torch.randn(B, H, W, G * C, device=DEVICE) if residual else None
    results = []
    for apply in (NormReLU.apply, None):
        leaves = [t.clone().requires_grad_() for t in (*affine, base)]
        extra = added.clone().requires_grad_() if added is not None else None
        running = torch.zeros(G, C, device=DEVICE), torch.ones(G, C, device=DEVICE)
        gamma, beta, x = leaves
        y = apply(shape, extra, x, *running, gamma, beta) if apply else expected(*leaves, *running, extra, shape)
        total = (y * torch.linspace(-1, 2, y.numel(), device=DEVICE).view(y.shape)).sum()
        gradients = torch.autograd.grad(total, [*leaves, *([extra] if extra is not None else [])])
        results.append([y, *running, *gradients])
    assert all(close(a, b) for a, b in zip(*results, strict=True))


def random_patches(shape: Shape) -> torch.Tensor:
    """Return patches: numbers with a mean other than 0, then a one, then zeros."""
    patches = torch.randn(shape.lanes, shape.rows, PATCH, device=DEVICE) + 0.5
    patches[..., ONE:] = torch.eye(PATCH - ONE, device=DEVICE)[0]
    return patches


@pytest.mark.parametrize(
    ("batch", "channels", "most_parts", "dtype", "error"),
    [
        (B, C, k.MOST_PARTS, torch.float32, 1e-5),
        (7, 128, 2, torch.float32, 1e-5),  # two parts of two tiles, the last one empty, two blocks of channels
        (B, C, k.MOST_PARTS, *HALF),
    ],
)
def test_first_layer_whole(
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    channels: int,
    most_parts: int,
    dtype: torch.dtype,
    error: float,
) -> None:
    monkeypatch.setattr(k, "MOST_PARTS", most_parts)
    shape = Shape(batch, H, W, G, channels, source=STACKED, result=STACKED)
    patches, start = random_patches(shape).to(dtype), torch.randn(G, channels, PATCH, device=DEVICE).to(dtype)
    start[..., ONE:] = 0
    dy = torch.linspace(-1, 2, G * shape.rows * channels, device=DEVICE).to(dtype).view(G, batch, H, W, channels)
    in_blocks = dy.view(G, batch, H // 2, 2, W // 2, 2, channels).transpose(3, 4).reshape(dy.shape)
    affine = torch.rand(G, channels, device=DEVICE) + 0.5, torch.randn(G, channels, device=DEVICE)
    results = []
    for ours in (True, False):
        weight, gamma, beta = (t.clone().requires_grad_() for t in (start, *affine))
        running = torch.zeros(G, channels, device=DEVICE), torch.ones(G, channels, device=DEVICE)
        if ours:
            y, back = FirstLayer.apply(shape, patches, weight, *running, gamma, beta), in_blocks
        else:
            x = torch.bmm(patches.float(), weight.float().transpose(1, 2))
            y, back = expected(gamma, beta, x, *running, None, shape), dy.float()
        of_weight, *others = torch.autograd.grad(y, [weight, gamma, beta], back)
        results.append([y, *running, of_weight[..., :ONE], *others])
    with torch.no_grad():
        for a, b in zip(*results, strict=True):
            assert float((a.float() - b.float()).norm()) <= error * float(b.float().norm())


def test_first_layer_with_given_statistics() -> None:
    shape = Shape(B, H, W, G, C, source=STACKED, result=STACKED)
    patches, weight = random_patches(shape), torch.randn(G, C, PATCH, device=DEVICE)
    mean, rstd, gamma, beta = (torch.rand(G, C, device=DEVICE) + 0.5 for _ in range(4))
    y = convolve_and_normalise(patches, weight, (mean, rstd, gamma, beta), shape)
    m, r, g, b = (t.unsqueeze(1) for t in (mean, rstd, gamma, beta))
    assert close(y.flatten(1, 3), ((torch.bmm(patches, weight.transpose(1, 2)) - m) * r * g + b).relu())


@pytest.mark.parametrize("shape", [(2, 4, 3, 3, 3), (2, 3, 70, 5, 5)])
def test_rank_one_weights(shape: tuple[int, ...]) -> None:
    lanes, out, inp, height, width = shape
    start = [torch.randn(lanes, *s, device=DEVICE) for s in ((out, inp, height, width), (1, 1, height, width))]
    start.append(torch.randn(lanes, out, inp, 1, 1, device=DEVICE))
    results = []
    for ours in (True, False):
        mu, u, v = (t.clone().requires_grad_() for t in start)
        weight = RankOneWeight.apply(mu, u, v, torch.float32) if ours else (mu + u * v).permute(0, 1, 3, 4, 2)
        total = (weight * torch.linspace(-1, 2, weight.numel(), device=DEVICE).view(weight.shape)).sum()
        results.append([weight, *torch.autograd.grad(total, [mu, u, v])])
    assert all(close(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("shape", [(2, 4, 3, 3, 3), (2, 3, 70, 5, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dense_weights(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    # Numbers that bfloat16 can hold: Triton's interpreter does not round to the nearest, as a GPU does.
    weight = torch.randn(shape, device=DEVICE).bfloat16().float().requires_grad_()
    laid, wanted = LaidOut.apply(weight, dtype), weight.permute(0, 1, 3, 4, 2).to(dtype)
    assert torch.equal(laid, wanted)
    back = torch.linspace(-1, 2, laid.numel(), device=DEVICE, dtype=dtype).view(laid.shape)
    assert torch.equal(*(torch.autograd.grad(result, weight, back)[0] for result in (laid, wanted)))


def test_patches() -> None:
    pixels = torch.randn(2, 3, 3, 16, 16, device=DEVICE)
    got = make_patches(pixels)
    around = pad(pixels.flatten(0, 1), (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1).permute(0, 2, 3, 4, 5, 1)
    assert torch.equal(got[..., :ONE], around.reshape(2, -1, 27))
    assert (got[..., ONE] == 1).all()
    assert not got[..., ONE + 1 :].any()


@pytest.mark.parametrize("jitter", [True, False])
def test_augmentation(jitter: bool) -> None:
    pool = torch.randint(0, 256, (20, 3, 16, 16), dtype=torch.uint8, device=DEVICE)
    positions = torch.randint(0, 20, (24,), device=DEVICE)
    draws = draw(24, torch.Generator().manual_seed(1)).to(DEVICE)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    rows = plan_augmentation(draws, 16, 16) if jitter else plain_row(16, 16).repeat(24, 1).to(DEVICE)
    got = make_batch(pool, positions, rows, torch.empty(24, 3, 16, 16, device=DEVICE), (mean, std), jitter)
    pixels = augment(pool[positions], draws) if jitter else pool[positions].float() / 255
    assert torch.allclose(got, normalise(pixels, *(torch.tensor(t, device=DEVICE) for t in (mean, std))), atol=1e-5)


@pytest.mark.parametrize(
    ("width", "pixels", "batch", "fits"),
    [(1, 32, 256, True), (4, 32, 256, True), (8, 32, 256, False), (1, 64, 1024, True), (1, 64, 2048, False)],
)
def test_models_beyond_offsets_of_32_bits_run_on_the_reference_engine(
    width: float, pixels: int, batch: int, fits: bool
) -> None:
    with torch.device("meta"):
        model = build_model("resnet9", 10, width=width)
        images = torch.empty(1, 3, pixels, pixels)
    reason = supported(model, images, batch)
    assert reason is None if fits else "offsets of 32 bits" in reason


@pytest.mark.parametrize("setting", [{"momentum": 0.01}, {"momentum": None}, {"eps": 1e-3}])
def test_other_batch_normalisation_runs_on_the_reference_engine(setting: dict[str, float | None]) -> None:
    """The kernels and the recalibration compute with PyTorch's default momentum and eps."""
    images = torch.empty(1, 3, 32, 32, device="meta")
    with torch.device("meta"):
        model = build_model("resnet9", 10)
    assert supported(model, images, 256) is None
    for name, value in setting.items():
        setattr(model.conv7.norm, name, value)
    assert "another momentum than 0.1 or another eps than 1e-05" in str(supported(model, images, 256))
