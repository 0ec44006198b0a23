"""Kernel factorisation (paper, section 4.1): a weight is a rank-one product plus a sparse tensor, u v^T + mu."""

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList

from factorized_fl.core.errors import UserError, unknown
from factorized_fl.core.roles import find_head, layers, layers_under

LAYOUTS = ("taps", "mixed", "released")
INITS = ("xavier", "fit")
_SKIPPED = "skip (in a run: keep_dense)"


class RankOneSparse(nn.Module):
    """Rebuilds a weight of shape `shape` from its factors, W = u v^T + mu (paper, Eqs. 1-3).

    u and v are shaped so that `u * v` broadcasts to the matrix the layout factorises. mu is the tensor that
    `torch.nn.utils.parametrize` calls the original; with `mu=False` there is no mu and v is the original.
    In eval mode entries of mu smaller in magnitude than `threshold` count as zero.
    """

    def __init__(self, u: Tensor, v: Tensor, shape: Sequence[int], *, mu: bool = True, threshold: float = 0.0) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.v_shape = tuple(v.shape)
        self.matrix_shape = np.broadcast_shapes(u.shape, v.shape)  # PyTorch's function would import SymPy
        self.has_mu = mu
        self.threshold = threshold
        self.u = nn.Parameter(u.detach().clone())
        if mu:
            self.v = nn.Parameter(v.detach().clone())

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each tensor, as `roles` reads it."""
        return {"original": "mu", "u": "u", "v": "v"} if self.has_mu else {"original": "v", "u": "u"}

    def pruned(self, mu: Tensor) -> Tensor:
        """Return a mask that is true where eval mode sets mu to zero: |mu| < threshold."""
        return mu.abs() < self.threshold

    def forward(self, original: Tensor) -> Tensor:
        """Return the weight: u v^T + original, or u original^T without mu."""
        if not self.has_mu:
            return (self.u * original).reshape(self.shape)
        if not self.training and self.threshold > 0:
            original = original.masked_fill(self.pruned(original), 0.0)
        return torch.addcmul(original.reshape(self.matrix_shape), self.u, self.v).reshape(self.shape)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Return the original that gives `weight` with these u and v; without mu, the least-squares fit of v.

        Raises UserError if `weight` has another shape.
        """
        if tuple(weight.shape) != self.shape:
            raise UserError(f"The weight has shape {self.shape}; a tensor of shape {tuple(weight.shape)} does not fit.")
        if self.has_mu:
            return weight - (self.u * self.v).reshape(self.shape)
        u = self.u.double()
        product = (weight.double().reshape(self.matrix_shape) * u).sum_to_size(self.v_shape)
        # With u = 0 every v gives the same weight; the clamp then selects v = 0.
        return (product / u.square().sum().clamp_min(torch.finfo(u.dtype).tiny)).to(weight.dtype)


def factorize(
    model: nn.Module,
    *,
    layout: str = "taps",
    mu: bool = True,
    include: Iterable[str] = (),
    skip: Iterable[str] = (),
    init: str = "xavier",
    threshold: float = 0.0,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Factorise every Linear and convolution of a model in place; frozen weights stay dense.

    Args:
        model: any module; transposed convolutions and packed attention projections stay dense.
        layout: the matrix of a kernel that has rank one. "taps": F*F x I*O, u are the filter taps (the paper);
            "mixed": I*F x O*F (the paper's ablation); "released": F*F x I*O viewed as the kernel without a
            permutation (as in the authors' code).
        mu: whether weights have the sparse tensor mu; without it a weight has rank one.
        include: as `skip`, the layers that are factorised; all if it is empty.
        skip: qualified names of layers that stay dense, or of modules all of whose layers do. A module that is
            registered under several names may be given by any of them; patterns such as "blocks.*.mlp" fit names.
        init: "xavier" draws new u and v and sets mu to zero; "fit" computes u and v from the leading singular pair
            of the present weight and sets mu to the remainder, so that a trained model keeps its outputs.
        threshold: entries of mu below it count as zero in eval mode.
        generator: the source of the draws, which are made in module order; by default the global generator.

    Returns:
        The same model.

    Raises:
        UserError: if an option is unknown or a layer cannot be factorised. After any exception the model is as before.
    """
    if layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS)
    if init not in INITS:
        raise unknown("init", init, INITS)
    _check_threshold(threshold)
    chosen = _select(model, *((part,) if isinstance(part, str) else tuple(part) for part in (include, skip)))
    for name, layer in chosen.items():
        _check(name, layer, model, init)

    # Computing the factors may fail, for example for lack of memory: every layer is computed before the first changes.
    parts = []
    for layer in chosen.values():
        weight = cast(nn.Parameter, layer.weight)
        u_shape, v_shape = factor_shapes(weight.shape, layout)
        if init == "fit":
            u, v = leading_pair(weight, u_shape, v_shape)
        else:
            u, v = (xavier(shape, weight, generator) for shape in (u_shape, v_shape))
        part = RankOneSparse(u, v, weight.shape, mu=mu, threshold=float(threshold))
        parts.append((layer, part, v))
    for layer, part, v in parts:
        parametrize.register_parametrization(layer, "weight", part)
        if init == "xavier":
            with torch.no_grad():
                original = weight_parts(layer).original
                original.copy_(torch.zeros_like(original) if mu else v)
    return model


def fold(model: nn.Module) -> nn.Module:
    """Make a dense copy of a factorised model, without parametrisations.

    Args:
        model: a module after `ffl.factorize`; it is unchanged.

    Returns:
        The copy, which has the outputs that the model has in eval mode.
    """
    copy = deepcopy(model)
    for module in list(copy.modules()):
        if not parametrize.is_parametrized(module):
            continue
        weights = {}
        for name, parts in cast(nn.ModuleDict, module.parametrizations).items():
            with torch.no_grad():
                value = parts.eval()()
            weights[name] = nn.Parameter(value, requires_grad=any(p.requires_grad for p in parts.parameters()))
        # parametrize.remove_parametrizations would change the class, which the copy shares with the model.
        module.__class__ = parametrize.type_before_parametrizations(module)
        del module.parametrizations
        # PyTorch's layers register their weights first: this restores the original order of the state dict.
        module._parameters = {**weights, **module._parameters}
    return copy


def set_threshold(model: nn.Module, value: float) -> None:
    """Set the magnitude below which entries of mu count as zero in eval mode, in every layer; 0 prunes nothing.

    Raises UserError if the model has no factorised layer or `value` is not a finite number of at least 0.
    """
    _check_threshold(value)
    parts = [part for part, _ in factored(model)]
    if not parts:
        raise UserError("The model has no factorised layer whose mu could be pruned; call factorize first.")
    for part in parts:
        part.threshold = float(value)


def head_mu_xavier(model: nn.Module, generator: torch.Generator | None = None) -> nn.Module:
    """Draw the classifier's mu Xavier-uniformly, as the authors' code does, and return the model."""
    for name in layers_under(model, find_head(model)):
        if parametrize.is_parametrized(layer := model.get_submodule(name), "weight"):
            nn.init.xavier_uniform_(weight_parts(layer).original, generator=generator)
    return model


def factored(model: nn.Module) -> Iterator[tuple[RankOneSparse, Tensor]]:
    """Yield every rank-one parametrisation of the model with its original tensor (mu, or v without mu)."""
    for module in model.modules():
        if isinstance(module, ParametrizationList) and isinstance(module[0], RankOneSparse):
            yield module[0], module.original


def factor_shapes(shape: Sequence[int], layout: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes in which u and v of a weight (O, I, *kernel) broadcast to the matrix the layout factorises."""
    out, inp, *kernel = shape
    ones = [1] * len(kernel)
    if not kernel:
        return (1, inp), (out, 1)
    if layout == "taps":
        return (1, 1, *kernel), (out, inp, *ones)
    if layout == "mixed":
        cut = math.ceil(len(kernel) / 2)
        return (1, inp, *kernel[:cut], *ones[cut:]), (out, 1, *ones[:cut], *kernel[cut:])
    return (math.prod(kernel), 1), (1, out * inp)


def xavier(shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return a Xavier-uniform vector (fans: 1 and its length) with the type and on the device of `like`."""
    bound = math.sqrt(6 / (1 + math.prod(shape)))
    device = generator.device if generator else like.device
    return torch.empty(*shape, dtype=like.dtype, device=device).uniform_(-bound, bound, generator=generator).to(like)


def leading_pair(weight: Tensor, u_shape: Sequence[int], v_shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the best rank-one factors of a weight, sqrt(s) times each leading singular vector, in the given shapes.

    They are computed in float64 on the CPU with a fixed sign, so that all sites that start from one model get the same.
    """
    rows = [axis for axis, size in enumerate(v_shape) if size == 1]
    columns = [axis for axis, size in enumerate(v_shape) if size != 1]
    tensor = weight.detach().to("cpu", torch.float64).reshape(np.broadcast_shapes(u_shape, v_shape))
    matrix = tensor.permute(*rows, *columns).reshape(math.prod(u_shape), math.prod(v_shape))

    # The Gram matrix of the shorter side: a kernel's matrix is often 9 x 65,536.
    if matrix.shape[0] <= matrix.shape[1]:
        a = torch.linalg.eigh(matrix @ matrix.T).eigenvectors[:, -1]
    else:
        b = torch.linalg.eigh(matrix.T @ matrix).eigenvectors[:, -1]
        a = matrix @ b
        # A zero weight has no leading direction; with any unit vector v receives gradients and can be trained.
        a = a / a.norm() if a.norm() > 0 else torch.eye(len(a), 1, dtype=a.dtype)[:, 0]
    a = a * a[a.abs().argmax()].sign()
    b = matrix.T @ a
    root = float(b.norm().sqrt()) or 1.0
    return (root * a).reshape(*u_shape).to(weight), (b / root).reshape(*v_shape).to(weight)


def _select(model: nn.Module, include: Sequence[str], skip: Sequence[str]) -> dict[str, nn.Module]:
    chosen = layers(model)
    if not chosen:
        raise UserError("The model has no Linear or convolution layer to factorise.")
    chosen = {name: layer for name, layer in chosen.items() if not is_frozen(layer)}
    if not chosen:
        raise UserError("All layers of the model are frozen: set requires_grad of a weight, or fold the model first.")
    known = ", ".join(chosen)
    named: dict[str, set[str]] = {"include": set(), "skip": set()}
    for what, entries in (("include", include), ("skip", skip)):
        for entry in entries:
            found = _named(model, entry)
            if not found:
                where = _SKIPPED if what == "skip" else what
                raise UserError(f"{where} names '{entry}', but no layer has this name; the layers are {known}.")
            named[what] |= found
    chosen = {
        n: layer for n, layer in chosen.items() if n not in named["skip"] and (not include or n in named["include"])
    }
    if not chosen:
        what = f"{_SKIPPED} leaves" if skip else "include names"
        raise UserError(f"{what} no layer to factorise; name {'fewer' if skip else 'other'} layers in it.")
    return chosen


def is_frozen(layer: nn.Module) -> bool:
    """Return whether the layer's weight is not trained: it stays dense, because factors would replace its values."""
    weight = layer._parameters.get("weight")
    return weight is not None and not weight.requires_grad


def _named(model: nn.Module, entry: str) -> set[str]:
    """Return the names of the layers under a module's name or pattern; none for an empty name."""
    names = {name for name, _ in model.named_modules(remove_duplicate=False) if name}
    fitting = [name for name in names if fnmatchcase(name, entry)] if set(entry) & set("*?[") else [entry]
    return {layer for name in fitting if name for layer in layers_under(model, name)}


def _check(name: str, layer: nn.Module, model: nn.Module, init: str) -> None:
    title = f"Layer '{name}'" if name else "The layer"
    if any(isinstance(part, RankOneSparse) for part in layer.modules()):
        raise UserError(f"{title} is factorised already; fold the model first to factorise it again.")
    weight = layer._parameters.get("weight")
    if weight is None:
        raise UserError(
            f"{title} has a weight under another parametrisation or pruning: remove it, or name the layer in "
            f"{_SKIPPED}."
        )
    if is_lazy(weight):
        raise UserError(f"{title} does not know its shape yet; run one batch through the model first.")
    if sum(weight is other for module in model.modules() for other in module._parameters.values()) > 1:
        raise UserError(f"{title} shares its weight with another module; untie the two, or name both in {_SKIPPED}.")
    if init == "fit" and weight.is_meta:
        raise UserError(f"{title} is on the meta device and has no values to fit; load its weights or use init=xavier.")
    if init == "fit" and not weight.numel():
        shape = tuple(weight.shape)
        raise UserError(
            f"{title} is empty (its weight has shape {shape}), so no factors fit it: name the layer in {_SKIPPED}."
        )
    if init == "fit" and not weight.isfinite().all():
        raise UserError(f"{title} has weights that are not finite, so no factors fit them.")


def _check_threshold(value: float) -> None:
    if not 0 <= value < math.inf:
        raise UserError(f"The threshold must be a number of at least 0, not {value}.")


def weight_parts(layer: nn.Module) -> ParametrizationList:
    """Return the parametrisation of a layer's weight."""
    return cast(ParametrizationList, cast(nn.ModuleDict, layer.parametrizations)["weight"])
