"""The networks of the paper, ResNet-9 and ResNet-18 for small images, and a small one for quick trials.

A network draws the weights of its body before those of its head, so that with one seed the bodies of clients with
different numbers of classes are the same.
"""

import math
from collections import OrderedDict
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from factorized_fl.core.errors import UserError, unknown

Scale = Callable[[int], int]
Head = Callable[[int], nn.Module]


class ResNet9(nn.Module):
    """Eight convolutions, numbered as in the paper's table of the ResNet-9 architecture, and a classifier."""

    def __init__(self, channels: int, scale: Scale, head: Head) -> None:
        super().__init__()
        a, b, c = scale(64), scale(128), scale(256)
        self.conv1 = _block(channels, a)
        self.conv2 = _block(a, b, kernel=5, stride=2)
        self.conv3 = _block(b, b)
        self.conv4 = _block(b, b)
        self.conv5 = _block(b, c)
        self.conv6 = _block(c, c)
        self.conv7 = _block(c, c)
        self.conv8 = _block(c, c, padding=0)
        self.head = head(c)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores of a batch of images."""
        x = self.conv2(self.conv1(x))
        x = x + self.conv4(self.conv3(x))
        x = F.max_pool2d(self.conv5(x), 2)
        x = x + self.conv7(self.conv6(x))
        # The last convolution has no padding; for images below 12 pixels its input is smaller than its 3 x 3 kernel.
        x = F.pad(x, (0, max(0, 3 - x.shape[-1]), 0, max(0, 3 - x.shape[-2])))
        x = F.adaptive_max_pool2d(self.conv8(x), 1).flatten(1)
        return self.head(x)


class ResNet18(nn.Module):
    """ResNet-18 in its usual form for 32 x 32 images: a 3 x 3 stem of stride 1, no pooling before the four stages."""

    def __init__(self, channels: int, scale: Scale, head: Head) -> None:
        super().__init__()
        a, b, c, d = scale(64), scale(128), scale(256), scale(512)
        self.stem = _block(channels, a)
        self.stage1 = nn.Sequential(BasicBlock(a, a), BasicBlock(a, a))
        self.stage2 = nn.Sequential(BasicBlock(a, b, stride=2), BasicBlock(b, b))
        self.stage3 = nn.Sequential(BasicBlock(b, c, stride=2), BasicBlock(c, c))
        self.stage4 = nn.Sequential(BasicBlock(c, d, stride=2), BasicBlock(d, d))
        self.head = head(d)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores of a batch of images."""
        x = self.stage4(self.stage3(self.stage2(self.stage1(self.stem(x)))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, which is a 1 x 1 projection if the shape changes."""

    def __init__(self, inp: int, out: int, stride: int = 1) -> None:
        super().__init__()
        # The shortcut is registered first, so that the last convolution before the head is last in the state dict.
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inp != out:
            self.shortcut = _block(inp, out, kernel=1, stride=stride, relu=False)
        self.conv1 = _block(inp, out, stride=stride)
        self.conv2 = _block(out, out, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's feature map."""
        return F.relu(self.conv2(self.conv1(x)) + self.shortcut(x))


class SmallCNN(nn.Module):
    """Two 5 x 5 convolutions, each followed by pooling, and a fully connected layer: trains on a CPU in seconds.

    The fully connected layer is written as a convolution over a map of 4 x 4 cells. Images with sides of 16 pixels give
    such a map; maps of other images are averaged to, or repeated in, so many cells.
    """

    def __init__(self, channels: int, scale: Scale, head: Head) -> None:
        super().__init__()
        a, b, c = scale(16), scale(32), scale(64)
        self.conv1 = _block(channels, a, kernel=5)
        self.conv2 = _block(a, b, kernel=5)
        self.conv3 = _block(b, c, kernel=4, padding=0)
        self.head = head(c)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores of a batch of images."""
        x = F.max_pool2d(self.conv2(F.max_pool2d(self.conv1(x), 2)), 2)
        return self.head(self.conv3(F.adaptive_avg_pool2d(x, 4)).flatten(1))


FEWEST_PIXELS = 8  # of an image's sides
MODELS: dict[str, Callable[[int, Scale, Head], nn.Module]] = {"resnet9": ResNet9, "resnet18": ResNet18, "cnn": SmallCNN}


def build_model(
    name: str,
    classes: int,
    *,
    channels: int = 3,
    width: float = 1.0,
    head_layers: int = 1,
    head_norm: bool = False,
    head_width: int = 0,
) -> nn.Module:
    """Return a network for images of at least 8 x 8 pixels, whose classifier is the attribute `head`.

    Raises UserError if an argument has no meaning, alone or with the others.

    Args:
        name: "resnet9", "resnet18" or "cnn".
        classes: number of classes.
        channels: channels of the images.
        width: factor of all channel counts, which are rounded to multiples of 8, at least 8.
        head_layers: 1 for one fully connected layer, 2 for two with a ReLU between them.
        head_norm: whether batch normalisation precedes that ReLU.
        head_width: outputs of the first of two layers; 0 for as many as it has inputs.
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    for what, value in (("classes", classes), ("channels", channels)):
        if not isinstance(value, int) or value < 1:
            raise UserError(f"A model needs a whole number of {what} of at least 1, not {value!r}.")
    if not 0 < width < math.inf:
        raise UserError(f"The width of a model must be a number above 0, not {width!r}.")
    if head_layers not in (1, 2):
        raise UserError(f"A head has 1 or 2 layers, not {head_layers!r}.")
    if head_norm and head_layers == 1:
        raise UserError("head_norm normalises between two head layers; set head_layers=2 or leave it off.")
    if head_width and head_layers == 1:
        raise UserError("head_width is the width between two head layers; set head_layers=2 or leave it at 0.")

    def scale(count: int) -> int:
        return max(8, round(count * width / 8) * 8)

    def head(features: int) -> nn.Module:
        if head_layers == 1:
            return nn.Linear(features, classes)
        hidden = head_width or features
        norm = [nn.BatchNorm1d(hidden)] if head_norm else []
        return nn.Sequential(nn.Linear(features, hidden), *norm, nn.ReLU(), nn.Linear(hidden, classes))

    return MODELS[name](channels, scale, head)


def _block(
    inp: int, out: int, *, kernel: int = 3, stride: int = 1, padding: int | None = None, relu: bool = True
) -> nn.Sequential:
    padding = kernel // 2 if padding is None else padding
    conv = nn.Conv2d(inp, out, kernel, stride, padding, bias=False)
    block = nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(out)))
    if relu:
        block.add_module("relu", nn.ReLU())
    return block
