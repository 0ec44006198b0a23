import pytest
import torch
from torch import nn

from factorized_fl.engine import threads as engine_threads
from factorized_fl.nn import factorize
from tests.tiny import tiny_federation


@pytest.mark.parametrize(("worth", "threads"), [(40e6, 1), (1.0, 2)])
def test_small_batches_are_not_shared_among_threads(
    monkeypatch: pytest.MonkeyPatch, worth: float, threads: int
) -> None:
    monkeypatch.setattr(engine_threads, "WORTH_A_THREAD", worth)
    seen = []
    with engine_threads.using_threads(2):
        federation = tiny_federation("factorized-fl")
        federation.engine.train(1, (0,), federation.clients, lambda client: seen.append(torch.get_num_threads()))
        assert torch.get_num_threads() == 2
    assert seen == [threads]
    assert federation.engine.describe()["threads"] == threads


@pytest.mark.parametrize("factorised", [False, True])
def test_counts_the_operations_of_an_image(factorised: bool) -> None:
    """A 3x3 convolution from 2 to 5 channels at 4 x 4 places, and 80 numbers to 7."""
    layers = [torch.nn.Conv2d(2, 5, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(80, 7)]
    model = torch.nn.Sequential(*layers)
    if factorised:
        factorize(model)
    assert engine_threads.operations(model, torch.zeros(1, 2, 4, 4)) == 2 * (5 * 2 * 9 * 16 + 80 * 7)


@pytest.mark.parametrize(
    ("model", "shape", "products"),
    [
        (nn.Linear(3, 7), (1, 5, 3), 5 * 3 * 7),  # five tokens
        (nn.Linear(3, 7), (3,), 3 * 7),
        (nn.Conv1d(4, 6, 3, groups=2), (1, 4, 10), 8 * 6 * 2 * 3),  # eight places, two channels in a group
        (nn.Conv3d(2, 3, 2), (1, 2, 3, 3, 3), 8 * 3 * 2 * 8),
        (nn.ConvTranspose2d(2, 5, 3), (1, 2, 4, 4), 16 * 2 * 5 * 9),
        (nn.Embedding(9, 4), (1, 5), 0),  # looked up, not multiplied
    ],
)
def test_counts_every_place_at_which_a_weight_is_applied(
    model: nn.Module, shape: tuple[int, ...], products: int
) -> None:
    example = torch.zeros(shape, dtype=torch.int64 if isinstance(model, nn.Embedding) else torch.float32)
    assert engine_threads.operations(model, example) == 2 * products


def test_counts_the_operations_of_attention() -> None:
    """Four projections of 6 tokens of 8 numbers, two products with a 6 x 6 matrix, a hidden layer of 16."""
    attention = 4 * 6 * 8 * 8 + 2 * 6 * 6 * 8
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert engine_threads.operations(layer, torch.zeros(1, 6, 8)) == 2 * (attention + 2 * 6 * 8 * 16)

    class Cross(nn.Module):
        """Attend from 3 tokens of 4 numbers to the given 5 tokens, with the batch as second axis."""

        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(4, 2, kdim=3, vdim=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attend(torch.zeros(3, 1, 4), key=x, value=x[..., :2])[0]

    cross = 3 * 4 * 4 + 5 * 3 * 4 + 5 * 2 * 4 + 2 * 3 * 5 * 4 + 3 * 4 * 4
    assert engine_threads.operations(Cross(), torch.zeros(5, 1, 3)) == 2 * cross


def test_a_model_that_fails_keeps_no_hooks() -> None:
    model = nn.Linear(3, 7)
    with pytest.raises(RuntimeError):
        engine_threads.operations(model, torch.zeros(1, 4))
    assert not model._forward_hooks
