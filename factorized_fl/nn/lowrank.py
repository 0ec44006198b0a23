"""pFedPara's parametrisation: a weight is W1 * (W2 + 1), W1 and W2 of low rank (Hyeon-Woo et al., FedPara)."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from factorized_fl.core.errors import UserError
from factorized_fl.core.roles import layers, layers_under
from factorized_fl.nn.factorized import is_frozen


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
        """The kind of each tensor: "w1" for the factors of the shared W1, "w2" for those of the personal W2."""
        return {f"original{i}": "w1" if i < self.per_half else "w2" for i in range(2 * self.per_half)}

    def forward(self, *factors: Tensor) -> Tensor:
        """Return the weight, W1 * (W2 + 1)."""
        # A product of matrices can differ in its last bit with their place in memory. A client's factors are parts of
        # the stack of all clients, so their place depends on how many there are; a copy has a place of its own.
        factors = tuple(factor.clone() for factor in factors)
        return self._half(*factors[: self.per_half]) * (self._half(*factors[self.per_half :]) + 1)

    def _half(self, x: Tensor, y: Tensor, core: Tensor | None = None) -> Tensor:
        if core is None:
            return x.T @ y
        kernel = core.shape[2:]
        tied = (x.T @ core.flatten(1)).view(-1, core.shape[1], math.prod(kernel))  # [O, b, taps]
        return torch.einsum("obp,bi->oip", tied, y).reshape(x.shape[1], y.shape[1], *kernel)

    def right_inverse(self, weight: Tensor) -> Sequence[Tensor]:
        """Return the factors given to the constructor; PyTorch calls this once, when it registers the parametrisation.

        Raises UserError in every later call, because an arbitrary weight has no low-rank factors.
        """
        if self.factors is None:
            raise UserError("A low-rank weight cannot be assigned: change its factors, or fold the model first.")
        factors, self.factors = self.factors, None
        return factors


def rank(shape: Sequence[int], gamma: float, capacity: float = 0.0) -> int:
    """Return the rank of the halves of a weight (O, I, *kernel).

    `gamma` interpolates between the least rank at which the weight can have full rank (0) and the largest at which
    the factors hold no more numbers than the dense weight (1). With `capacity` above 0 it is instead the rank at which
    both halves together hold that share of the dense weight's numbers.
    """
    out, inp, *kernel = shape
    least = math.ceil(math.sqrt(max(inp, out) if kernel else min(inp, out)))
    if capacity:
        return max(least, math.ceil(_rank_of_share(shape, capacity)))
    most = math.floor(_rank_of_share(shape, 1.0))
    return max(1, math.ceil(round((1 - gamma) * least + gamma * most, 9)))


def _rank_of_share(shape: Sequence[int], share: float) -> float:
    """Return the r at which both halves hold this share of the dense weight's numbers.

    For a Linear it solves 2 r (I + O) = share * I * O, for a kernel 2 (r^2 taps + r (I + O)) = share * I * O * taps.
    """
    out, inp, *kernel = shape
    taps, both = math.prod(kernel), inp + out
    if not kernel:
        return share * inp * out / (2 * both)
    return (-both + math.sqrt(both**2 + 2 * share * inp * out * taps**2)) / (2 * taps)


def low_rank(
    model: nn.Module,
    *,
    gamma: float = 0.5,
    capacity: float = 0.0,
    skip: Iterable[str] = (),
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Parametrise every Linear and convolution of a model in place, except frozen ones and those under `skip`."""
    skipped = {name for entry in skip for name in layers_under(model, entry)}
    for name, layer in layers(model).items():
        if name in skipped or is_frozen(layer):
            continue
        weight: Tensor = layer.weight  # type: ignore[assignment]
        r = rank(weight.shape, gamma, capacity)
        factors = [factor for _ in range(2) for factor in _draw(weight, r, generator)]
        parametrize.register_parametrization(layer, "weight", LowRankHadamard(factors))
    return model


def _draw(weight: Tensor, r: int, generator: torch.Generator | None) -> list[Tensor]:
    """Return zero-mean normal factors whose product has about the scale of He's initialisation."""
    out, inp, *kernel = weight.shape
    scales: list[tuple[tuple[int, ...], float]] = [((r, out), math.sqrt(2 / out)), ((r, inp), math.sqrt(2 / inp))]
    if kernel:
        scales.append(((r, r, *kernel), math.sqrt(2 / (r * math.prod(kernel)))))
    return [std * torch.randn(*shape, generator=generator, dtype=weight.dtype) for shape, std in scales]
