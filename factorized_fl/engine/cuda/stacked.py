"""ResNet-9 of several clients ("lanes") at once: grouped convolutions, channels last, lanes side by side.

The first convolution is a matrix product over patches (three channels are too few for tensor cores otherwise); the
second, 5 x 5 with stride 2, becomes 3 x 3 with stride 1 on 2 x 2 blocks moved into the channels, because cuDNN runs
strided grouped convolutions lane by lane. All other convolutions are grouped 3 x 3 ones.
"""

from collections.abc import Mapping
from typing import cast

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.functional import conv2d, pad
from torch.nn.utils import parametrize

from factorized_fl.engine.cuda import kernels as k
from factorized_fl.engine.cuda.norm import EPS, NormReLU, Shape, normalise
from factorized_fl.methods.base import Tensors
from factorized_fl.nn.models import ResNet9

PATCH = 32  # 3 x 3 x 3 numbers of a patch, filled up with zeros


def supported(model: nn.Module, images: torch.Tensor) -> str | None:
    """Why a model cannot be stacked, or nothing."""
    if not isinstance(model, ResNet9):
        return f"{type(model).__name__} is not a ResNet-9"
    if images.shape[1] != 3:
        return "the images are not RGB"
    height, width = images.shape[2:]
    if height != width or height not in (16, 32, 64):
        return f"images of {height} x {width} pixels are not of 16, 32 or 64"
    channels = [module.out_channels for module in model.modules() if isinstance(module, nn.Conv2d)]
    if any(count % k.CHANNELS for count in channels):
        return f"channel counts are not multiples of {k.CHANNELS}"
    if not isinstance(model.head, nn.Linear):
        return "the classifier has more than one layer"
    return None


class StackedResNet9:
    """Runs the model's mathematics on stacked tensors; it owns no state."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype

    def weights(self, tensors: Mapping[str, torch.Tensor]) -> Tensors:
        """Every layer's dense weight [G, O, I, ...], rebuilt from its factors lane by lane."""
        found = {}
        for name, module in self.model.named_modules():
            if not isinstance(module, nn.Conv2d | nn.Linear):
                continue
            if not parametrize.is_parametrized(module):
                found[name] = tensors[f"{name}.weight"]
                continue
            parts = cast(nn.ModuleDict, module.parametrizations)["weight"]
            prefix = f"{name}.parametrizations.weight."
            own = {leaf: tensors[prefix + leaf] for leaf in parts.state_dict()}

            def rebuild(factors: Tensors, parts: nn.Module = parts) -> torch.Tensor:
                return functional_call(parts, factors, ())

            found[name] = vmap(rebuild)(own)
        return found

    def logits(self, tensors: Mapping[str, torch.Tensor], weights: Tensors, pixels: torch.Tensor) -> torch.Tensor:
        """Scores [G, B, classes] of normalised images [G, B, 3, H, W]."""
        lanes, batch, _, height, width = pixels.shape
        self._tensors, self._lanes, self._batch = tensors, lanes, batch
        x = torch.bmm(self.patches(pixels), self._patch_weight(weights["conv1.conv"]))
        x = self._norm("conv1.norm", x, height, width, k.DEPTH, lanes_first=True)
        height, width = height // 2, width // 2
        x = self._conv(x, self._blocked(weights["conv2.conv"]), 1)
        x = skip = self._norm("conv2.norm", x, height, width)
        x = self._norm("conv3.norm", self._conv(x, weights["conv3.conv"], 1), height, width)
        x = self._norm("conv4.norm", self._conv(x, weights["conv4.conv"], 1), height, width, residual=skip)
        x = self._norm("conv5.norm", self._conv(x, weights["conv5.conv"], 1), height, width, k.POOL)
        height, width = height // 2, width // 2
        skip = x
        x = self._norm("conv6.norm", self._conv(x, weights["conv6.conv"], 1), height, width)
        x = self._norm("conv7.norm", self._conv(x, weights["conv7.conv"], 1), height, width, residual=skip)
        x = self._norm("conv8.norm", self._conv(x, weights["conv8.conv"], 0), height - 2, width - 2)
        features = x.flatten(1, 2).max(dim=1).values.view(batch, lanes, -1).transpose(0, 1)
        scores = torch.bmm(features.float(), weights["head"].transpose(1, 2))
        return scores + tensors["head.bias"].unsqueeze(1)

    def patches(self, pixels: torch.Tensor) -> torch.Tensor:
        """The 3 x 3 surroundings of every pixel, [G, B * H * W, PATCH]."""
        lanes, batch, channels, height, width = pixels.shape
        framed = pad(pixels.flatten(0, 1), (1, 1, 1, 1))
        around = framed.unfold(2, 3, 1).unfold(3, 3, 1).permute(0, 2, 3, 1, 4, 5)
        out = pixels.new_zeros(lanes * batch, height, width, PATCH)
        out[..., : 9 * channels].view(*out.shape[:3], channels, 3, 3).copy_(around)
        return out.view(lanes, -1, PATCH)

    def _patch_weight(self, weight: torch.Tensor) -> torch.Tensor:
        flat = weight.flatten(2).to(self.dtype)
        return pad(flat, (0, PATCH - flat.shape[2])).transpose(1, 2)

    def _blocked(self, weight: torch.Tensor) -> torch.Tensor:
        """A 5 x 5 kernel of stride 2 as a 3 x 3 kernel on 2 x 2 blocks: tap 2 t + p is tap t of phase p."""
        lanes, out, inp = weight.shape[:3]
        framed = pad(weight, (0, 1, 0, 1)).view(lanes, out, inp, 3, 2, 3, 2)
        return framed.permute(0, 1, 4, 6, 2, 3, 5).reshape(lanes, out, 4 * inp, 3, 3)

    def _conv(self, x: torch.Tensor, weight: torch.Tensor, padding: int) -> torch.Tensor:
        """Convolve packed activations [B, H, W, G * I] with [G, O, I, 3, 3]; packed again."""
        kernel = weight.flatten(0, 1).to(self.dtype, memory_format=torch.channels_last)
        out = conv2d(x.permute(0, 3, 1, 2), kernel, padding=padding, groups=self._lanes)
        return out.permute(0, 2, 3, 1).contiguous()

    def _norm(
        self,
        name: str,
        x: torch.Tensor,
        height: int,
        width: int,
        mode: int = k.PLAIN,
        residual: torch.Tensor | None = None,
        lanes_first: bool = False,
    ) -> torch.Tensor:
        gamma, beta = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        mean, variance = self._tensors[f"{name}.running_mean"], self._tensors[f"{name}.running_var"]
        shape = Shape(self._batch, height, width, self._lanes, gamma.shape[1], mode, lanes_first)
        if self.model.training:
            self._tensors[f"{name}.num_batches_tracked"].add_(1)
            return NormReLU.apply(x, gamma, beta, mean, variance, residual, shape)
        return normalise(x, mean, torch.rsqrt(variance + EPS), gamma, beta, residual, shape)
