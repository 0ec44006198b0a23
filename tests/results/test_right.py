"""Which test images were right: one bit for each client and image, in every run directory."""

from pathlib import Path

import numpy as np
import torch

from factorized_fl.core.views import Evaluated
from factorized_fl.results.right import load_graded, pack_graded, save_graded, unpack_graded
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.run import run_federation
from tests.tiny import tiny_config, tiny_federation, tiny_scenario


def test_the_bits_of_every_client_come_back_and_shared_images_are_kept_once(tmp_path: Path) -> None:
    scenario = tiny_scenario(tiny_config())
    rng = np.random.default_rng(0)
    wanted = {}
    for k, client in enumerate(scenario.clients):
        bits = torch.from_numpy(rng.random(len(client.test)) < 0.5)
        wanted[k] = Evaluated(int(bits.sum()), len(bits), 0.0, bits)
    save_graded(tmp_path / "right.safetensors", scenario, wanted)
    found = load_graded(tmp_path / "right.safetensors")
    assert {k: graded.right.tolist() for k, graded in found.items()} == {
        k: result.right.tolist() for k, result in wanted.items()
    }
    packed = pack_graded(found, tmp_path)
    again = unpack_graded(packed, tmp_path)
    assert {k: (one.right.tolist(), one.images.tolist()) for k, one in again.items()} == {
        k: (one.right.tolist(), one.images.tolist()) for k, one in found.items()
    }
    assert [group["clients"] for group in packed] == [["client 1", "client 2"], ["client 3", "client 4"]]
    assert unpack_graded(packed, tmp_path / "elsewhere") == {}
    assert found[0].images is found[1].images
    assert found[2].images is found[3].images
    assert not set(found[0].images) & set(found[2].images)
    assert len(set(found[0].images)) == len(scenario.clients[0].test)


def test_results_without_bits_are_left_out(tmp_path: Path) -> None:
    save_graded(tmp_path / "right.safetensors", tiny_scenario(tiny_config()), {0: Evaluated(1, 2, 0.0)})
    assert load_graded(tmp_path / "right.safetensors") == {}


def test_a_run_keeps_the_bits_of_its_last_round(tmp_path: Path) -> None:
    config = tiny_config(rounds=2)
    run = run_federation(config, tmp_path / "run", scenario=tiny_scenario(config))
    found = load_graded(run.path / "right.safetensors")
    correct = {record["client"]: record["correct"] for record in run.metrics() if record["round"] == 2}
    assert {k: int(graded.right.sum()) for k, graded in found.items()} == correct
    assert all(len(graded.right) == len(graded.images) for graded in found.values())


def test_a_round_hands_over_the_bits_of_what_it_tested() -> None:
    kept: dict[int, Evaluated] = {}
    records, _ = run_round(tiny_federation(), 1, keep=kept.update)
    assert [int(kept[record["client"]].right.sum()) for record in records] == [r["correct"] for r in records]
