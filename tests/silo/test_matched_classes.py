"""Classes matched between organisations: a lost site, a restart, a malicious description, terms that are refused."""

import threading
from pathlib import Path

import pytest
import torch

from factorized_fl.cli import network
from factorized_fl.core.classes import MEANS, SPREAD
from factorized_fl.core.errors import UserError
from factorized_fl.methods.correspondence import StatisticsMatcher
from factorized_fl.results.classes import read_classes
from factorized_fl.results.reading import RunReader
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import read_agreement
from factorized_fl.silo.memory import Memory
from factorized_fl.silo.messages import Message
from tests.silo.loopback import Loopback
from tests.silo.parties import NAMES, kits_of, make_sites, trio_config, write_trio

ALIGN = {"align": "statistics", "align_classes": 6, "align_confidence": 0.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trio(tmp_path_factory.mktemp("trio"))


class Lost:
    """A site that answers two rounds and no further one."""

    def __init__(self, site) -> None:
        self.site, self.train_images = site, site.train_images

    def answer(self, request: Message) -> Message:
        if request.fields.get("round", 0) > 2:
            threading.Event().wait(20)
        return self.site.answer(request)


def test_a_federation_goes_on_without_a_lost_site_and_remembers_its_matches(data: Path, tmp_path: Path) -> None:
    config = trio_config("fedavg", rounds=4, **ALIGN)
    kits = kits_of(tmp_path, config, deadline=1.0, quorum=2)
    sites = make_sites(kits, data)
    parties = Loopback(kits, {name: Lost(site) if name == "cedar" else site for name, site in sites.items()})
    for site in parties.sites:
        parties.start(site)
    assert parties.coordinator.run()
    entries = read_classes(RunReader(kits["aster"].run))["0"]
    assert entries["round"] == 4
    assert {peer for entry in entries["classes"] for peer, _ in entry["peers"]} >= {1}  # the other site with rows
    assert set(read_classes(RunReader(kits[COORDINATOR].run))) == {"0", "1", "2"}
    again = Memory(config, NAMES)
    again.load(parties.coordinator.memory.tensors)
    for memory in (again, parties.coordinator.memory):
        assert memory.server.classes is not None
        memory.server.classes.match(5, memory.server.extra, memory.received)
    assert again.server.classes is not None
    assert parties.coordinator.memory.server.classes is not None
    assert torch.equal(again.server.classes.matches.labels, parties.coordinator.memory.server.classes.matches.labels)
    again.set_aside(1)
    again.server.classes.match(5, again.server.extra, again.received)
    assert (again.server.classes.matches.labels[1] == -1).all()


def test_a_description_that_no_images_have_does_not_stop_the_matching() -> None:
    rng = torch.Generator().manual_seed(1)
    extra = {MEANS: torch.rand(3, 4, 65, generator=rng), SPREAD: torch.randn(3, 2080, generator=rng)}
    extra[MEANS][0, :, -1] = torch.tensor([1e-30, -1.0, 1e30, 0.5])
    found = StatisticsMatcher().match(extra, torch.ones(3, dtype=torch.bool))
    assert found.confidence.isfinite().all()


@pytest.mark.parametrize(
    ("line", "words"), [('align = "true"', "true names"), ('align = "statistics"', "must set align_classes")]
)
def test_terms_that_organisations_cannot_meet_are_refused(line: str, words: str, tmp_path: Path) -> None:
    sites = "".join(f'[[sites]]\nname = "{name}"\n' for name in NAMES)
    path = tmp_path / "sites.toml"
    path.write_text(f'name = "trio"\nmethod = "fedavg"\nimage_size = 8\nchannels = 1\n{line}\n{sites}')
    with pytest.raises(UserError, match=words):
        read_agreement(path)


def test_a_site_is_told_what_matching_reveals_when_it_joins(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, terms in (("on", ALIGN), ("off", {})):
        kit = kits_of(tmp_path / folder, trio_config("fedavg", **terms))["aster"]
        found = network.Found("aster: 4 classes", "cpu")
        network.site_choices(kit, data / "aster", None, None, "cpu", check=lambda *given, found=found: found)
        shown = capsys.readouterr().out
        for words in ("no image and no name", "how many images of each", "Other sites see which of their classes"):
            assert (words in shown) == (folder == "on")
