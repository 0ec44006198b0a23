"""Every method gives the same results between organisations as in one process with the same seeds."""

from pathlib import Path

import pytest
import torch

from factorized_fl.methods import METHODS, correspondence
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import NOISE_SEED
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.scenario import build_scenario_of
from tests.silo.loopback import Loopback
from tests.silo.parties import NAMES, kits_of, make_sites, trio_config, write_trio


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trio(tmp_path_factory.mktemp("trio"))


VARIANTS = {
    "averaged": {"optimizer": "adamw", "schedule": "cosine", "clip_norm": 0.5, "ema": 0.7},
    "adapted": {"options": {"test": "adapted"}},
    "half": {"fraction": 0.67, "rounds": 4},
    "blurred": {"options": {"blur": 0.1, "general": 1}},
    "by-images": {"align": "statistics", "align_classes": 7, "align_confidence": 0.0, "rounds": 4},
    "by-rows": {"align": "classifier", "align_classes": 6, "align_confidence": 0.0, "rounds": 4},
    "open": {"options": {"tried_on": "validation", "fallback": "current"}},
}


SERVING = [name for name, method in METHODS.items() if not method.needs_agreeing_labels]
CASES = [
    *SERVING,
    *("ifca half", "apfl half", "pacfl half", "per-fedavg adapted", "factorized-fl half", "factorized-peers blurred"),
    *("fedfomo open", "fedavg averaged", "clustered-fl half", "fedfomo half", "fedbabu half", "knn-per half"),
]
CASES += ["fedavg by-images", "factorized-peers by-images", "fedavg by-rows", "factorized-fl-beta by-rows"]
CASES += ["fedproto by-images"]


@pytest.mark.parametrize("method", CASES)
def test_network_equals_one_process(method: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, variant = method.partition(" ")
    if variant == "by-rows":  # so few rounds prove nothing, and nothing would be matched
        monkeypatch.setattr(correspondence, "direction_evidence", lambda rows, owner: 30 * rows @ rows.T)
    config = trio_config(name, **VARIANTS.get(variant, {}))
    # Weights of rank one change up to eight times as much at one of these sites: the limit would shorten that.
    kits = kits_of(tmp_path, config, **({"change_limit": 0.0} if name == "without-mu" else {}))
    for site in NAMES:  # one process draws all noise from the seed that all know
        (kits[site].path / NOISE_SEED).write_text(str(config.seed))
    sites = make_sites(kits, data)
    parties = Loopback(kits, sites)
    assert parties.run()

    federation = build_federation(config, build_scenario_of(config, data), torch.device("cpu"))
    wanted = []
    for round_number in range(1, config.rounds + 1):
        records, mixing = run_round(federation, round_number)
        wanted += records
    assert federation.server.classes is None or (federation.server.classes.matches.labels >= 0).any()
    for k, site in enumerate(sites.values()):
        own, theirs = site.federation.clients.state.client(0), federation.clients.state.client(k)
        for tensor in own:
            torch.testing.assert_close(own[tensor], theirs[tensor], rtol=0, atol=1e-6, msg=tensor)
    got = RunDirectory(kits[COORDINATOR].run).metrics()
    assert [_known(record) for record in got] == [_known(record) for record in wanted]
    for k, site in enumerate(NAMES):
        rows = [_comparable({**record, "client": k}) for record in RunDirectory(kits[site].run).metrics()]
        assert rows == [_comparable(record) for record in wanted if record["client"] == k]
    if mixing is not None:
        assert torch.equal(RunDirectory(kits[COORDINATOR].run).mixing(config.rounds)["matrix"], mixing.matrix)


def _comparable(record: dict) -> dict:
    """Losses to six digits; everything else as it is."""
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in record.items()}


def _known(record: dict) -> dict:
    """What the coordinator knows as well: not the paper's formula, which counts classifiers, and not further scores."""
    kept = _comparable(record).items()
    return {key: value for key, value in kept if not key.endswith("_formula") and key != "scores"}
