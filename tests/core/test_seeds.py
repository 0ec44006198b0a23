"""Random streams by name."""

import torch

from factorized_fl.core.seeds import global_rng, seed_global


def test_seeding_the_devices_in_use_gives_the_streams_of_pytorch() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        wanted = torch.rand(3)
        for device in (torch.device("cpu"), None):
            seed_global(5, device)
            assert torch.equal(torch.rand(3), wanted)


def test_a_global_stream_depends_on_its_path_and_leaves_the_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    drawn = []
    for path in (("train", 1), ("train", 2), ("train", 1)):
        with global_rng(0, *path, device=torch.device("cpu")):
            drawn.append(torch.rand(3))
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(torch.get_rng_state(), before)
