"""The small network of versions before 0.2: three convolutions of 3 x 3 and a maximum over the whole map."""

from torch import Tensor, nn


class FormerCNN(nn.Module):
    """The network `cnn` of commit 3a531ae: ``model="studies.mini.former_cnn:FormerCNN"``."""

    def __init__(self, example: Tensor, outputs: int) -> None:
        super().__init__()
        self.conv1 = _convolution(example.shape[1], 16, stride=1)
        self.conv2 = _convolution(16, 32, stride=2)
        self.conv3 = _convolution(32, 64, stride=2)
        self.head = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores of a batch of images."""
        x = self.conv3(self.conv2(self.conv1(x)))
        return self.head(x.amax((2, 3)))


def _convolution(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())
