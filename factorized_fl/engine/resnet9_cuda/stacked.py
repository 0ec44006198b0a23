"""ResNet-9 of several clients ("lanes") at once: grouped convolutions, channels last, lanes side by side.

The first convolution is a matrix product, computed inside the kernels that normalise it. conv2 and conv5 run one lane
at a time, because cuDNN copies slices of grouped activations where input and output channels differ or the stride is
not 1; all others are grouped. docs/performance.md has the figures.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from factorized_fl.core.views import Tensors
from factorized_fl.engine.resnet9_cuda import norm_kernels
from factorized_fl.engine.resnet9_cuda.convolution import LaneConvolution
from factorized_fl.engine.resnet9_cuda.first_layer import FirstLayer, convolve_and_normalise, make_patches, patch_weight
from factorized_fl.engine.resnet9_cuda.lanes import COST
from factorized_fl.engine.resnet9_cuda.norm import EPS, MOMENTUM, PACKED, STACKED, NormReLU, Shape, normalise_lanes
from factorized_fl.engine.resnet9_cuda.weights import layer_weights
from factorized_fl.nn.models import ResNet9

TEST_PIXELS = 1024 * 1000  # of one client in one batch


def supported(model: nn.Module, images: Tensor, batch_size: int) -> str | None:
    """Return the reason why the CUDA engine cannot run a model on such images, or None if it can."""
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
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    if any((norm.momentum, norm.eps) != (MOMENTUM, EPS) for norm in norms):
        return f"its batch normalisation has another momentum than {MOMENTUM} or another eps than {EPS}"
    # After conv2 the lanes are side by side; FedFOMO evaluates one model more than the number of training lanes.
    numbers = max(batch_size * height * width, TEST_PIXELS) // 4 * channels[1] * (max(COST) + 1)
    return "its batches are too large for offsets of 32 bits" if numbers >= 2**31 else None


class StackedResNet9:
    """The forward pass of a model on the stacked tensors of several clients; it holds no state of its own."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype

    def weights(self, tensors: Mapping[str, Tensor]) -> Tensors:
        """Return every layer's dense weights [G, ...], rebuilt from the factors of each lane."""
        return layer_weights(self.model, tensors, self.dtype)

    def logits(self, tensors: Mapping[str, Tensor], weights: Tensors, pixels: Tensor) -> Tensor:
        """Return the logits [G, B, classes] of normalised images [G, B, 3, H, W]."""
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
    """The state of one forward pass; `size` is the present height and width of the activations."""

    stacked: StackedResNet9
    tensors: Mapping[str, Tensor]
    lanes: int
    batch: int
    size: int

    def grouped(self, x: Tensor, weight: Tensor, padding: int = 1) -> Tensor:
        """Convolve PACKED activations [B, H, W, G * I] with weights [G, O, 3, 3, I]; the result is PACKED.

        float32 runs one lane at a time, which with the cost of unpacking is faster than cuDNN's grouped convolution.
        """
        if x.dtype == torch.float32:
            lanes = x.unflatten(3, (self.lanes, -1)).permute(3, 0, 1, 2, 4).contiguous()
            return LaneConvolution.apply(lanes, weight, 1, padding).permute(1, 2, 3, 0, 4).flatten(3)
        kernel = weight.flatten(0, 1).permute(0, 3, 1, 2)
        return conv2d(x.permute(0, 3, 1, 2), kernel, padding=padding, groups=self.lanes).permute(0, 2, 3, 1)

    def first(self, name: str, patches: Tensor, weight: Tensor) -> Tensor:
        """Return the activations of the first layer on patches of the images."""
        norm = self._norm_tensors(name)
        shape = Shape(self.batch, self.size, self.size, self.lanes, norm[-1].shape[1], result=STACKED)
        if self.stacked.model.training:
            return FirstLayer.apply(shape, patches, weight, *norm)
        return convolve_and_normalise(patches, weight, norm, shape)

    def norm(
        self,
        name: str,
        x: Tensor,
        *,
        mode: int = norm_kernels.PLAIN,
        residual: Tensor | None = None,
        source: str = PACKED,
        result: str = PACKED,
    ) -> Tensor:
        """Normalise a layer's output, apply the ReLU, and pool or add the residual."""
        norm = self._norm_tensors(name)
        shape = Shape(self.batch, self.size, self.size, self.lanes, norm[-1].shape[1], mode, source, result)
        x = x.contiguous()  # cuDNN may return another memory format than that of its input
        if self.stacked.model.training:
            return NormReLU.apply(shape, residual, x, *norm)
        return normalise_lanes(x, norm, residual, shape)

    def _norm_tensors(self, name: str) -> tuple[Tensor, ...]:
        """Return mean, variance, gamma and beta of a layer, with the inverse deviation in evaluation mode.

        In training mode also count the batch.
        """
        leaves = ("running_mean", "running_var", "weight", "bias")
        mean, variance, *affine = (self.tensors[f"{name}.norm.{leaf}"] for leaf in leaves)
        if not self.stacked.model.training:
            return mean, torch.rsqrt(variance + EPS), *affine
        self.tensors[f"{name}.norm.num_batches_tracked"].add_(1)
        return mean, variance, *affine
