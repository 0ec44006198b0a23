"""The miniature presets: what they hold, on real images if those are there."""

import json
from pathlib import Path

import pytest

from factorized_fl.api import configure
from factorized_fl.presets import PRESETS
from factorized_fl.simulate.scenario import build_scenario_of

RESULTS = Path(__file__).parents[1] / "results"
SHARED = Path(__file__).parents[2] / "shared" / "data"
MINI = [name for name in PRESETS if name.startswith("mini-")]


@pytest.mark.parametrize("preset", MINI)
def test_a_miniature_has_small_images_and_a_narrow_network(preset: str) -> None:
    config = configure(preset, "fedavg")
    assert (config.model, config.width, config.rounds) == ("resnet9", 0.25, 20)
    steps = config.clients * config.rounds * config.epochs * (config.images_per_client // config.batch_size)
    assert steps <= 6000  # about two minutes on one core
    assert config.image_size <= 32
    assert config.test_images == 600


@pytest.mark.parametrize(
    ("preset", "sizes", "per_domain"),
    [
        ("mini-domains", {256}, [3, 3, 3, 3, 3]),
        ("mini-domains-unequal", {256}, [1, 2, 3, 4, 5]),
        ("mini-domains-30", {30}, [3, 3, 3, 3, 3]),
    ],
)
def test_miniatures_of_the_five_domains(preset: str, sizes: set[int], per_domain: list[int]) -> None:
    if not (SHARED / "cifar100-domains").is_dir():
        pytest.skip("needs ../shared/data/cifar100-domains")
    scenario = build_scenario_of(configure(preset, "fedavg"), SHARED)
    assert {len(client.train) for client in scenario.clients} == sizes
    domains = [client.domain for client in scenario.clients]
    assert [domains.count(name) for name in dict.fromkeys(domains)] == per_domain
    assert {len(client.test) for client in scenario.clients} == {600}
    assert scenario.images.shape[1:] == (3, 16, 16)
    assert not scenario.labels_agree


def test_presets_of_the_paper_match_as_their_tables_were_run() -> None:
    checked = set()
    for study in ("label-cifar10", "label-svhn", "domains"):
        for path in (RESULTS / "paper" / study).rglob("*.json"):
            record = json.loads(path.read_text())
            measured = record["configuration"]["options"]
            if record["method"] in ("factorized-fl", "factorized-fl-beta") and not record["variant"]:
                options = configure(record["preset"], record["method"]).options
                assert {name: options[name] for name in ("tau", "epsilon")} == {
                    name: measured[name] for name in ("tau", "epsilon")
                }, path
                checked.add(record["preset"])
    assert {"cifar100-domains", "cifar10-iid", "cifar10-permuted-non-iid", "svhn-permuted-iid"} <= checked
