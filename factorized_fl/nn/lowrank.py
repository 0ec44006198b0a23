"""pFedPara's parametrisation: a weight is W1 * (W2 + 1), both halves of low rank (Hyeon-Woo et al., FedPara)."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from factorized_fl.core.errors import UserError
from factorized_fl.core.roles import layers, under


class LowRankHadamard(nn.Module):
    """Rebuilds a weight from two low-rank halves: the shared W1 and the personal W2.

    A half of a convolution is sum_ab T[a,b] X[a,o] Y[b,i] (proposition 3 of FedPara), a half of a Linear X^T Y. The
    registered tensors are X, Y(, T) of W1, then the same of W2.
    """

    def __init__(self, factors: Sequence[Tensor]) -> None:
        super().__init__()
        self.factors: Sequence[Tensor] | None = tuple(factors)
        self.per_half = len(factors) // 2

    @property
    def kinds(self) -> dict[str, str]:
        """W1 may travel, W2 stays."""
        return {f"original{i}": "w1" if i < self.per_half else "w2" for i in range(2 * self.per_half)}

    def forward(self, *factors: Tensor) -> Tensor:
        """W1 * (W2 + 1)."""
        return self._half(*factors[: self.per_half]) * (self._half(*factors[self.per_half :]) + 1)

    def _half(self, x: Tensor, y: Tensor, core: Tensor | None = None) -> Tensor:
        if core is None:
            return x.T @ y
        kernel = core.shape[2:]
        tied = (x.T @ core.flatten(1)).view(-1, core.shape[1], math.prod(kernel))  # [O, b, taps]
        return torch.einsum("obp,bi->oip", tied, y).reshape(x.shape[1], y.shape[1], *kernel)

    def right_inverse(self, weight: Tensor) -> Sequence[Tensor]:
        """The factors it was made with, once, when it is registered; a given weight has no low-rank factors."""
        if self.factors is None:
            raise UserError("A low-rank weight cannot be assigned: change its factors, or fold the model first.")
        factors, self.factors = self.factors, None
        return factors


def rank(shape: Sequence[int], gamma: float, capacity: float = 0.0) -> int:
    """Rank of a weight (O, I, *kernel): between the least that can be full and the largest that is not larger.

    `capacity` above 0 takes the rank at which both halves hold that share of the dense weight's numbers instead.
    """
    out, inp, *kernel = shape
    taps = math.prod(kernel)
    if kernel:
        least = math.ceil(math.sqrt(max(inp, out)))
        most = math.floor(_tensor_root(inp, out, taps, 1.0))
    else:
        least = math.ceil(math.sqrt(min(inp, out)))
        most = math.floor(inp * out / (2 * (inp + out)))
    if capacity:
        root = _tensor_root(inp, out, taps, capacity) if kernel else capacity * inp * out / (2 * (inp + out))
        return max(least, math.ceil(root))
    return max(1, math.ceil(round((1 - gamma) * least + gamma * most, 9)))


def _tensor_root(inp: int, out: int, taps: int, share: float) -> float:
    """The r at which 2 (r^2 taps + r (I + O)) = share * I * O * taps."""
    both = inp + out
    return (-both + math.sqrt(both**2 + 2 * share * inp * out * taps**2)) / (2 * taps)


def low_rank(
    model: nn.Module,
    *,
    gamma: float = 0.5,
    capacity: float = 0.0,
    skip: Iterable[str] = (),
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Put the parametrisation on every Linear and convolution of a model, in place, and return the model."""
    left_out = tuple(skip)
    for name, layer in layers(model).items():
        if any(under(name, entry) for entry in left_out):
            continue
        weight: Tensor = layer.weight  # type: ignore[assignment]
        r = rank(weight.shape, gamma, capacity)
        factors = [factor for _ in range(2) for factor in _draw(weight, r, generator)]
        parametrize.register_parametrization(layer, "weight", LowRankHadamard(factors))
    return model


def _draw(weight: Tensor, r: int, generator: torch.Generator | None) -> list[Tensor]:
    """Zero-mean normals whose product has about He's scale."""
    out, inp, *kernel = weight.shape
    scales: list[tuple[tuple[int, ...], float]] = [((r, out), math.sqrt(2 / out)), ((r, inp), math.sqrt(2 / inp))]
    if kernel:
        scales.append(((r, r, *kernel), math.sqrt(2 / (r * math.prod(kernel)))))
    return [std * torch.randn(*shape, generator=generator, dtype=weight.dtype) for shape, std in scales]
