"""The number of classes stays at the site: no count that the coordinator receives or keeps depends on it."""

import secrets
from itertools import count
from pathlib import Path

import pytest
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.payload import decode
from factorized_fl.methods import METHODS, fingerprints
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import NOISE_SEED
from factorized_fl.silo.messages import Message
from factorized_fl.simulate.build import build_federation
from tests.silo.loopback import Loopback
from tests.silo.parties import NAMES, kits_of, make_sites, trio_config, write_images
from tests.silo.test_trust import Handler
from tests.tiny import tiny_set

CLASSES = {"aster": 2, "birch": 3, "cedar": 5}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same number of images at each site, in two, three and five classes."""
    root = tmp_path_factory.mktemp("trio")
    for name, classes in CLASSES.items():
        write_images(root / name, tiny_set("row", classes, 60))
    return root


class Overheard(Handler):
    """A site that keeps its last answer."""

    def answer(self, request: Message) -> Message:
        self.said = self.site.answer(request)
        return self.said

    def outline(self) -> tuple[dict, dict]:
        """The answer without the values of its tensors and its seconds."""
        tensors = decode(self.said.payload) if self.said.payload else {}
        shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        return {key: value for key, value in self.said.fields.items() if key != "seconds"}, shapes


@pytest.mark.parametrize("method", [name for name, cls in METHODS.items() if not cls.needs_agreeing_labels])
def test_no_count_depends_on_the_number_of_classes(method: str, data: Path, tmp_path: Path) -> None:
    kits = kits_of(tmp_path, trio_config(method, rounds=1))
    sites = [Overheard(site) for site in make_sites(kits, data).values()]
    for site in sites:
        site.site.report = False
    parties = Loopback(kits, dict(zip(NAMES, sites, strict=True)))
    assert parties.run()
    assert sites[0].outline() == sites[1].outline() == sites[2].outline()
    assert {len(site.site.federation.scenario.clients[0].classes) for site in sites} == {2, 3, 5}
    own = {"client", "domain"}
    if any(
        parties.coordinator.memory.roles[name].kind == "mu" for name in parties.coordinator.memory.server.stack
    ):  # what survives of mu depends on training
        own |= {"up_parameters", "up_bytes", "up_roles", "up_formula", "down_formula"}
    kept = RunDirectory(kits[COORDINATOR].run).metrics()
    lines = [{key: value for key, value in record.items() if key not in own} for record in kept]
    assert len(lines) == 3
    assert lines[0] == lines[1] == lines[2]


def test_noise_is_drawn_once_and_from_nothing_that_others_know(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = count(7)  # a site that draws twice gets two numbers
    monkeypatch.setattr(secrets, "randbits", lambda bits: next(chance))
    config = trio_config("factorized-peers", options={"blur": 0.3})
    kits = kits_of(tmp_path, config)
    blurred, again = (make_sites(kits, data)["aster"] for _ in range(2))
    guess = build_federation(config, blurred.scenario, torch.device("cpu"), "reference")
    own, same, guessed = (
        f.clients.state.client(0)[fingerprints.NAME] for f in (blurred.federation, again.federation, guess)
    )
    assert torch.equal(own, same)
    assert (kits["aster"].path / NOISE_SEED).read_text() == "7"
    assert float((own - guessed).std()) > 0.2
    (kits["aster"].path / NOISE_SEED).write_text("rubbish")
    with pytest.raises(UserError, match="is damaged"):
        make_sites(kits, data)
