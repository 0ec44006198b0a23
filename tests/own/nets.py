"""Small networks and data as a user would write them; each runs in a few milliseconds."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import factorized_fl as ffl


class GroupNormCNN(nn.Module):
    def __init__(self, example: Tensor, outputs: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(example.shape[1], 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        )
        self.middle = nn.Linear(16, 6)
        self.head = nn.Linear(6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.features(x).flatten(1)).relu())


class ViT(nn.Module):
    """Patches, a class token, one block of attention with dropout."""

    def __init__(self, example: Tensor, outputs: int, width: int = 8) -> None:
        super().__init__()
        self.classifier = nn.Linear(width, outputs)  # registered first: the attribute `head` names it below
        self.patch = nn.Linear(example.shape[1] * 16, width)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, 1 + example[0, 0].numel() // 16, width) / 10)
        self.drop = nn.Dropout(0.2)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))
        self.register_buffer("scale", torch.ones(1), persistent=False)
        self.head = self.classifier

    def forward(self, x: Tensor) -> Tensor:
        patches = nn.functional.unfold(x, 4, stride=4).transpose(1, 2)
        x = self.patch(patches)
        x = self.drop(torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place) * self.scale
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return self.head((x + self.mlp(x))[:, 0])


class SeriesNet(nn.Module):
    """A 1-D network whose classifier has no special name."""

    def __init__(self, example: Tensor, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(example.shape[1], 4, 5, stride=2)
        self.norm = nn.BatchNorm1d(4)
        self.middle = nn.Linear(4, 6)
        self.last = nn.Linear(6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().mean(2)
        return self.last(self.middle(x).relu())


class TokenNet(nn.Module):
    """A `transformers` network made from a configuration, without pretrained weights: nothing is downloaded."""

    def __init__(self, example: Tensor, outputs: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        limits = {"vocab_size": 12, "max_position_embeddings": example.shape[1]}
        self.network = BertForSequenceClassification(BertConfig(**sizes, **limits, num_labels=outputs))
        self.head = self.network.classifier

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).logits


def table_net(example: Tensor, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(example.shape[1], 8), nn.Tanh(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, outputs))


def float_images(rng: np.random.Generator, y: Any) -> Any:
    x = rng.normal(0, 0.3, (len(y), 2, 8, 12)).astype(np.float32)
    x[np.arange(len(y)), 0, y] += 1
    return x


def byte_images(rng: np.random.Generator, y: Any) -> Any:
    x = rng.integers(0, 120, (len(y), 3, 8, 8))
    x[np.arange(len(y)), :, y] += 130
    return x.astype(np.uint8)


def series(rng: np.random.Generator, y: Any) -> Any:
    phase = np.arange(20) * (1 + np.asarray(y))[:, None] / 3
    return torch.from_numpy(np.stack([np.sin(phase), np.cos(phase)], 1) + rng.normal(0, 0.1, (len(y), 2, 20)))


def rows(rng: np.random.Generator, y: Any) -> Any:
    return rng.normal(0, 0.5, (len(y), 5)) + 2 * np.eye(5)[y]


def tokens(rng: np.random.Generator, y: Any) -> Any:
    x = rng.integers(5, 12, (len(y), 6))
    x[:, 2] = y  # the class is a word of its own
    return x


CASES: dict[str, tuple[Any, Any]] = {
    "cnn": (GroupNormCNN, float_images),
    "vit": (ViT, byte_images),
    "series": (SeriesNet, series),
    "mlp": (table_net, rows),
    "transformers": (TokenNet, tokens),
}


def own_clients(make: Any = rows, outputs: tuple[int, ...] = (2, 3, 2), named: bool = False) -> list[ffl.ClientData]:
    """Clients with different numbers of classes, or with the same names for the same classes."""
    clients = []
    for k, count in enumerate(outputs):
        rng = np.random.default_rng(k)
        y, yt = np.arange(12 + k) % count, np.arange(6) % count
        names = [f"class {c}" for c in range(count)] if named else count
        clients.append(ffl.ClientData(make(rng, y), y, test=(make(rng, yt), yt), classes=names))
    return clients
