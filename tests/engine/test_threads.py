import pytest
import torch

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
        federation.engine.train(
            1,
            (0,),
            federation.clients.state,
            federation.clients.momentum,
            lambda client: seen.append(torch.get_num_threads()),
        )
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
