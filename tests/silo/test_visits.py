"""A new site tries a finished federation: it gets what the method gives a site like it, and leaves nothing behind."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agent import Agent
from factorized_fl.silo.agreement import Kit, write_kit
from factorized_fl.silo.journal import Journal, last_lines
from factorized_fl.silo.messages import Message
from factorized_fl.silo.settings import Settings, save_settings
from factorized_fl.silo.site import Site
from factorized_fl.silo.transport import CannotContinue
from factorized_fl.silo.trial import end_trial, is_trial, make_trial, set_visitors
from factorized_fl.silo.visits import receive_visitors
from tests.silo.certificates import certify
from tests.silo.loopback import Loopback
from tests.silo.parties import NAMES, kits_of, make_sites, trio_config, write_trio

METHODS = ("fedavg", "factorized-peers")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_trio(tmp_path_factory.mktemp("trio"))
    shutil.copytree(root / "aster", root / "dahlia")
    return root


def with_dahlia(kits: dict[str, Kit]) -> dict[str, Kit]:
    """The kits after the authority has added dahlia."""
    terms = replace(kits["aster"].agreement, sites=(*NAMES, "dahlia"))
    table = {**kits["aster"].table, "clients": 4}
    root = kits["aster"].path.parent
    (root / "dahlia").mkdir()
    kits = {
        p: replace(kits.get(p, kits["aster"]), agreement=terms, table=table) for p in (COORDINATOR, *NAMES, "dahlia")
    }
    kits["dahlia"] = replace(kits["dahlia"], path=root / "dahlia", party="dahlia")
    for kit in kits.values():
        write_kit(kit)
    certify(kits, ["dahlia"])
    return kits


class Visitor:
    """A site in its trial, as the loopback sees it."""

    def __init__(self, site: Site) -> None:
        self.site, self.train_images, self.received = site, site.train_images, list[bytes]()

    def answer(self, request: Message) -> Message:
        self.received.append(request.payload)
        return self.site.answer(request)


class WithVisitors(Loopback):
    """A loopback in which the site dahlia visits the federation; polls are held for long, as between processes."""

    hold = 2.0

    def ask(self, site: str, news: Message) -> Message:
        fields = news.fields | ({"visit": True} if site == "dahlia" else {})
        return super().ask(site, replace(news, fields=fields))


@pytest.mark.parametrize("method", METHODS)
def test_a_trial_gives_what_a_member_would_get_and_keeps_nothing(method: str, data: Path, tmp_path: Path) -> None:
    kits = kits_of(tmp_path, trio_config(method, rounds=2))
    assert Loopback(kits, make_sites(kits, data)).run()
    kits = with_dahlia(kits)
    trial = make_trial(kits["dahlia"])
    assert is_trial(trial)
    set_visitors(kits[COORDINATOR], True)
    site = Site(trial, data / "dahlia", print, report=False)
    visitor = Visitor(site)
    parties = WithVisitors(kits, {"dahlia": visitor})
    coordinator = parties.coordinator
    assert coordinator.run()
    before = {name: tensor.clone() for name, tensor in coordinator.memory.tensors.items()}
    files = {path: path.read_bytes() for path in coordinator.kit.run.rglob("*") if path.is_file()}
    thread = parties.start("dahlia")
    tell = coordinator.tell

    def until_told(note: str | None = None) -> None:
        tell(note)
        if coordinator.mailbox.lines["dahlia"].told_end or len(visitor.received) > 2:
            coordinator.stop.set()

    coordinator.tell = until_told  # type: ignore[method-assign]
    receive_visitors(coordinator)
    thread.join(30)
    assert site.done == 2
    first, second = visitor.received
    assert first == b""
    assert len(second) > 1000
    (said,) = (line for line in parties.journal if "has visited" in line)
    share = float(said.partition("visited: ")[2].partition("%")[0])
    if method == "fedavg":  # a mean by the numbers of training images
        others = sum(client["train"] for client in RunDirectory(coordinator.kit.run).clients())
        assert share == pytest.approx(100 * others / (others + site.train_images), abs=0.1)
    else:  # dahlia has the images of aster, and rows like birch
        assert share > 10
    after = coordinator.memory.tensors
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert {path: path.read_bytes() for path in files} == files
    assert not coordinator.memory.declared
    if method == "fedavg":
        assert site.finish() is not None
        found = end_trial(trial)
        assert "With the federation: " in found
        assert "alone, after as much training: " in found
        assert RunDirectory(trial.alone).checkpoint_round() == 2
        assert not list(trial.path.rglob("*.key"))
        assert not (kits["dahlia"].path / "run").exists()


def test_a_visitor_of_a_federation_that_goes_on_takes_no_part(tmp_path: Path) -> None:
    kits = kits_of(tmp_path, trio_config("fedavg"))
    parties = WithVisitors(with_dahlia(kits), {})
    news = Message("ready", parties.kit.agreement.id, {"train": 9, "done": 0})
    reply = parties.ask("dahlia", news)
    assert (reply.kind, reply.fields["closed"]) == ("wait", True)
    assert not parties.mailbox.connected("dahlia")
    parties.mailbox.turned_away.add("dahlia")
    assert parties.ask("dahlia", news).kind == "refused"


def test_a_refused_visitor_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = make_trial(with_dahlia(kits_of(tmp_path, trio_config("fedavg")))["dahlia"])
    save_settings(trial, Settings(tmp_path))
    agent = Agent(trial, Journal(trial), None)  # type: ignore[arg-type]
    assert agent.about["visit"] is True
    hello = Message("hello", trial.agreement.id, {"train": 9, "agreement": trial.mark})
    monkeypatch.setattr("factorized_fl.silo.keeper.Trainer.hello", lambda *args: hello)
    closed = Message("wait", trial.agreement.id, {"closed": True})
    replies = [closed, closed, Message("refused", trial.agreement.id, {"version": "0", "turned_away": True})]
    monkeypatch.setattr(agent, "exchange", lambda news: replies.pop(0))
    with pytest.raises(CannotContinue, match="found a message of this site invalid"):
        agent.work()
    (line,) = last_lines(trial)
    assert "receives no visitors yet: after its last round, with --visitors" in line


def test_trials_that_cannot_be(tmp_path: Path) -> None:
    kits = with_dahlia(kits_of(tmp_path, trio_config("fedavg")))
    with pytest.raises(UserError, match="is the coordinator's kit"):
        make_trial(kits[COORDINATOR])
    for changes, words in (({"protect": "encrypt"}, "encrypts for its own sites"), ({"rounds": 1}, "has one round")):
        with pytest.raises(UserError, match=words):
            make_trial(replace(kits["dahlia"], table={**kits["dahlia"].table, **changes}))
    trial = make_trial(kits["dahlia"])
    (trial.path / "status.json").write_text("{}")
    assert make_trial(kits["dahlia"]) == trial
    assert (trial.path / "status.json").exists()  # an interrupted trial continues
    with pytest.raises(UserError, match="has no model: its journal says why"):
        end_trial(trial)
