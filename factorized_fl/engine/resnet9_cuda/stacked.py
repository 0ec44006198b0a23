"""ResNet-9 of several clients ("lanes") at once: grouped convolutions, channels last, lanes side by side.

The first convolution is a matrix product, made inside the kernels that normalise it. cuDNN is fastest with the lanes of
conv2 and conv5 one at a time, because there the numbers of channels differ or the stride is not 1 and it would cut
grouped activations into slices; all others are grouped. docs/performance.md has the figures.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import conv2d

from factorized_fl.core.views import Tensors
from factorized_fl.engine.resnet9_cuda import norm_kernels
from factorized_fl.engine.resnet9_cuda.convolution import LaneConvolution
from factorized_fl.engine.resnet9_cuda.first_layer import FirstLayer, convolve_and_normalise, make_patches, patch_weight
from factorized_fl.engine.resnet9_cuda.lanes import COST
from factorized_fl.engine.resnet9_cuda.norm import PACKED, STACKED, NormReLU, Shape, normalise
from factorized_fl.engine.resnet9_cuda.weights import layer_weights
from factorized_fl.nn.models import NORM_EPS, ResNet9

TEST_PIXELS = 1024 * 1000  # of one client at once


def supported(model: nn.Module, images: torch.Tensor, batch_size: int) -> str | None:
    """Why a model cannot be stacked, or nothing."""
    if not isinstance(model, ResNet9):
        return f"{type(model).__name__} is not a ResNet-9"
    if images.shape[1] != 3:
        return "the images are not RGB"
    height, width = images.shape[2:]
    if height != width or height not in (16, 32, 64):
        return f"images of {height} x {width} pixels are not of 16, 32 or 64"
    channels = [module.out_channels for module in model.modules() if isinstance(module, nn.Conv2d)]
    if any(count % norm_kernels.CHANNELS for count in channels):
        return f"channel counts are not multiples of {norm_kernels.CHANNELS}"
    if not isinstance(model.head, nn.Linear):
        return "the classifier has more than one layer"
    # Behind conv2 the lanes lie side by side, one more than train when FedFOMO tries models.
    numbers = max(batch_size * height * width, TEST_PIXELS) // 4 * channels[1] * (max(COST) + 1)
    return "its batches are too large for offsets of 32 bits" if numbers >= 2**31 else None


class StackedResNet9:
    """Runs the model's mathematics on stacked tensors; it owns no state."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype

    def weights(self, tensors: Mapping[str, torch.Tensor]) -> Tensors:
        """Every layer's dense weight, rebuilt from its factors lane by lane."""
        return layer_weights(self.model, tensors, self.dtype)

    def logits(self, tensors: Mapping[str, torch.Tensor], weights: Tensors, pixels: torch.Tensor) -> torch.Tensor:
        """Scores [G, B, classes] of normalised images [G, B, 3, H, W]."""
        lanes, batch, _, height, _ = pixels.shape
        run = _Pass(self, tensors, lanes, batch, height)
        x = run.first("conv1", make_patches(pixels), patch_weight(weights["conv1.conv"]))
        run.size //= 2
        x = run.norm("conv2", LaneConvolution.apply(x, weights["conv2.conv"], 2, 2), source=STACKED)
        skip = x
        x = run.norm("conv3", run.grouped(x, weights["conv3.conv"]))
        x = run.norm("conv4", run.grouped(x, weights["conv4.conv"]), residual=skip, result=STACKED)
        x = LaneConvolution.apply(x, weights["conv5.conv"], 1, 1)
        x = run.norm("conv5", x, mode=norm_kernels.POOL, source=STACKED)
        run.size //= 2
        skip = x
        x = run.norm("conv6", run.grouped(x, weights["conv6.conv"]))
        x = run.norm("conv7", run.grouped(x, weights["conv7.conv"]), residual=skip)
        x = run.grouped(x, weights["conv8.conv"], padding=0)
        run.size -= 2
        x = run.norm("conv8", x)
        features = x.flatten(1, 2).max(dim=1).values.view(batch, lanes, -1).transpose(0, 1)
        scores = torch.bmm(features.float(), weights["head"].transpose(1, 2))
        return scores + tensors["head.bias"].unsqueeze(1)


@dataclass
class _Pass:
    """One forward pass of a group: the side of the activations changes on the way."""

    stacked: StackedResNet9
    tensors: Mapping[str, torch.Tensor]
    lanes: int
    batch: int
    size: int

    def grouped(self, x: torch.Tensor, weight: torch.Tensor, padding: int = 1) -> torch.Tensor:
        """Convolve packed activations [B, H, W, G * I] with [G, O, 3, 3, I]; packed again.

        cuDNN's grouped convolutions of float32 are slow; one lane at a time is worth unpacking them.
        """
        if x.dtype == torch.float32:
            lanes = x.unflatten(3, (self.lanes, -1)).permute(3, 0, 1, 2, 4).contiguous()
            return LaneConvolution.apply(lanes, weight, 1, padding).permute(1, 2, 3, 0, 4).flatten(3)
        kernel = weight.flatten(0, 1).permute(0, 3, 1, 2)
        return conv2d(x.permute(0, 3, 1, 2), kernel, padding=padding, groups=self.lanes).permute(0, 2, 3, 1)

    def first(self, name: str, patches: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The first layer, on patches of the images."""
        gamma, beta, mean, variance = self._norm_tensors(name)
        shape = Shape(self.batch, self.size, self.size, self.lanes, gamma.shape[1], result=STACKED)
        if self.stacked.model.training:
            return FirstLayer.apply(shape, mean, variance, gamma, beta, patches, weight)
        return convolve_and_normalise(patches, weight, mean, torch.rsqrt(variance + NORM_EPS), gamma, beta, shape)

    def _norm_tensors(self, name: str) -> tuple[torch.Tensor, ...]:
        """Affine parameters and statistics of a layer's normalisation; training counts its batches."""
        if self.stacked.model.training:
            self.tensors[f"{name}.norm.num_batches_tracked"].add_(1)
        leaves = ("weight", "bias", "running_mean", "running_var")
        return tuple(self.tensors[f"{name}.norm.{leaf}"] for leaf in leaves)

    def norm(
        self,
        name: str,
        x: torch.Tensor,
        *,
        mode: int = norm_kernels.PLAIN,
        residual: torch.Tensor | None = None,
        source: str = PACKED,
        result: str = PACKED,
    ) -> torch.Tensor:
        """Normalise what a layer computed, ReLU, and the rest of what happens before the next convolution."""
        gamma, beta, mean, variance = self._norm_tensors(name)
        shape = Shape(self.batch, self.size, self.size, self.lanes, gamma.shape[1], mode, source, result)
        x = x.contiguous()  # cuDNN may hand back another memory format than it was given
        if self.stacked.model.training:
            return NormReLU.apply(shape, mean, variance, gamma, beta, residual, x)
        return normalise(x, mean, torch.rsqrt(variance + NORM_EPS), gamma, beta, residual, shape)
