"""All parties run on the same agreement, each on one machine."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from factorized_fl import __version__
from factorized_fl.core.errors import UserError
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo import agent, supervise
from factorized_fl.silo.agent import Agent
from factorized_fl.silo.agreement import Kit, differing_terms, read_kit, write_kit
from factorized_fl.silo.journal import Journal, journal_path
from factorized_fl.silo.mailbox import Mailbox
from factorized_fl.silo.messages import Message, pack, unpack
from factorized_fl.silo.transport import FINAL
from factorized_fl.silo.transport.flare import setup
from tests.silo.parties import kits_of, trio_config
from tests.silo.test_recovery import Clock

components = pytest.importorskip("factorized_fl.silo.transport.flare.components")


def ready(**about: object) -> Message:
    return Message("ready", "f" * 16, {"train": 5, "version": __version__, **about})


def test_a_mark_of_the_agreement_survives_the_kits_file_and_changes_with_its_terms(tmp_path: Path) -> None:
    kit = kits_of(tmp_path, trio_config())["aster"]
    write_kit(kit)
    assert read_kit(kit.path).mark == kit.mark
    assert replace(kit, party="birch", path=tmp_path).mark == kit.mark
    for same in ({"address": "elsewhere"}, {"port": 1}, {"deadline": 7.0}, {"quorum": 1}):
        assert replace(kit, agreement=replace(kit.agreement, **same)).mark == kit.mark
    others = [
        replace(kit, table=asdict(trio_config(**change))) for change in ({"rounds": 9}, {"lr": 0.1}, {"image_size": 16})
    ]
    assert kit.mark not in {other.mark for other in others}
    assert len({other.mark for other in others}) == 3
    # Sites come and go; the coordinator compares a site's own position.
    more = replace(kit.agreement, sites=("aster", "birch", "cedar", "dahlia"))
    assert replace(kit, agreement=more, table=asdict(trio_config(clients=4))).mark == kit.mark


def test_a_site_whose_position_differs_is_refused() -> None:
    box = Mailbox("f" * 16, ("aster", "birch"), agreement="ours")
    assert box.exchange("birch", ready(agreement="ours", seat=1), hold=0).kind == "wait"
    assert box.exchange("birch", ready(agreement="ours", seat=0), hold=0).kind == "refused"


def test_a_site_with_another_agreement_is_refused_and_named_once() -> None:
    said: list[str] = []
    box = Mailbox("f" * 16, ("aster",), said.append, agreement="ours")
    for _ in range(2):
        assert box.exchange("aster", ready(agreement="theirs"), hold=0).kind == "refused"
    assert said == ["aster: refused, as its agreement differs from the coordinator's: give it its kit again"]
    assert not box.connected("aster")
    assert box.doing("aster") == "refused"
    assert box.exchange("aster", ready(agreement="ours"), hold=0).kind == "wait"
    assert box.doing("aster") == "waiting"
    box.exchange("aster", ready(agreement="theirs", version="0.0.1"), hold=0)
    assert "aster: refused, as it runs factorized-fl 0.0.1" in said[1]


def test_a_later_version_goes_on_where_all_terms_agree_and_else_names_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = kits_of(tmp_path, trio_config(lr=0.1, rounds=9))["aster"]
    assert {"lr", "rounds", "image_size"} <= kit.terms.keys()
    # A version that lacks an option, which is at its default here, makes the same digest.
    fields = [(f.name, f.type, f) for f in dataclasses.fields(kit.config) if f.name not in ("min_peers", "options")]
    older = dataclasses.make_dataclass("Older", fields)(**{name: getattr(kit.config, name) for name, _, _ in fields})
    older.build_method = kit.config.build_method
    theirs = replace(kit, path=tmp_path / "older")
    monkeypatch.setitem(theirs.__dict__, "config", older)
    assert theirs.terms == kit.terms
    said: list[str] = []
    box = Mailbox("f" * 16, ("aster",), said.append, kit.mark, kit.terms)
    for _ in range(2):
        news = ready(agreement=theirs.mark, terms=theirs.terms, version="0.0.1")
        assert box.exchange("aster", news, hold=0).kind == "wait"
    assert said == [f"aster runs factorized-fl 0.0.1, the coordinator {__version__}: they agree on all terms"]
    other = replace(kit, table=asdict(trio_config(lr=0.2, rounds=9, options={"tau": 0.2})))
    reply = box.exchange("aster", ready(agreement=other.mark, terms=other.terms, version="0.0.1"), hold=0)
    assert (reply.kind, reply.fields["differs"]) == ("refused", ["lr", "options_tau"])
    assert said[1].endswith("and their agreements differ in lr, options_tau: install the same version")
    for odd in (None, [1], {"\x1b[31m": "x", "a b": "y"}):
        assert not set(differing_terms(kit.terms, odd)) - kit.terms.keys()


class Cable:
    """A line to a coordinator in this process."""

    def __init__(self, answer: Callable[[Message], Message]) -> None:
        self.answer = answer

    def ask(self, question: bytes, seconds: float) -> bytes:
        return pack(self.answer(unpack(question, "f" * 16, 2**40)))


class Hello:
    """A trainer that has read its images and gets no request."""

    def __init__(self, kit: Kit, journal: Journal) -> None:
        self.kit = kit

    def hello(self) -> Message:
        return Message("hello", "f" * 16, {"train": 5, "agreement": self.kit.mark, "terms": self.kit.terms})


def agent_of(kit: Kit, answer: Callable[[Message], Message]) -> Agent:
    """An agent in this process, with a line to this function."""
    write_kit(kit)
    return Agent(kit, Journal(kit), Cable(answer))


@pytest.mark.parametrize(
    ("version", "words"), [(__version__, "differs from the coordinator's: ask for its kit"), ("9", "the coordinator 9")]
)
def test_a_refused_site_says_why_and_stops(
    version: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = kits_of(tmp_path, trio_config())["aster"]
    asked: list[Message] = []

    def refuse(news: Message) -> Message:
        asked.append(news)
        return Message("refused", news.federation, {"version": version})

    write_kit(kit)
    monkeypatch.setattr(components, "end_with_parent", lambda parent: None)
    monkeypatch.setattr(agent, "Trainer", Hello)
    component = components.SiteComponent(str(kit.path))
    monkeypatch.setattr(component, "ask", Cable(refuse).ask)
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise SystemExit

    monkeypatch.setattr(components.os, "_exit", leave)
    with pytest.raises(SystemExit):
        component.run()
    assert codes == [FINAL]
    assert [news.fields["agreement"] for news in asked] == [kit.mark]
    assert words in journal_path(kit).read_text()


def test_a_refused_site_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = kits_of(tmp_path, trio_config())["aster"]
    command = [sys.executable, "-c", f"raise SystemExit({FINAL})"]
    Journal(kit)("refused: ask for its kit again")
    monkeypatch.setattr(supervise, "check_before_start", lambda kit: None)
    monkeypatch.setattr(setup, "prepare", lambda kit: None)
    monkeypatch.setattr(supervise, "start", lambda kit: subprocess.Popen(command, start_new_session=True))
    with pytest.raises(UserError, match="aster has stopped and would stop again: refused: ask for its kit again"):
        supervise.supervise(kit)


def test_copies_of_one_kit_are_told_apart_from_a_restart() -> None:
    said: list[str] = []
    clock = Clock()
    box = Mailbox("f" * 16, ("aster",), said.append, clock=clock)

    def hear(mark: str, seconds: float) -> bool:
        clock.now += seconds
        box.recognise("aster", mark)
        return "twice" in box.exchange("aster", ready(), hold=0).fields

    assert not any(hear(mark, 60) for mark in ("a", "a", "b", "c", "c"))
    assert not any(hear(mark, 1) for mark in ("d", "c", "d"))  # c was on its way when d began
    assert said == []
    assert all(hear(mark, 20) for mark in ("c", "d", "c"))
    assert said == ["aster runs in two places, with copies of one kit: stop one of them"]
    assert box.doing("aster") == "runs in two places"
    assert not hear("c", 61)  # the copy is gone
    assert box.doing("aster") == "waiting"
    assert hear("d", 20)
    assert len(said) == 2


class Login:
    """The entry of a site's process in FLARE's server."""

    def __init__(self, token: str) -> None:
        self.token = token


class Server:
    """The part of FLARE's server that the coordinator's component uses."""

    def __init__(self) -> None:
        self.server = self.client_manager = self.cell = self
        self.name_to_clients: dict[str, Login] = {}

    def register_request_cb(self, **options: object) -> None:
        pass


def asking(kit: Kit, token: str) -> Any:
    """A site's question as FLARE passes it on."""
    about = {"train": 5, "agreement": kit.mark, "version": __version__}
    request = components.new_cell_message({}, pack(Message("ready", kit.agreement.id, about)))
    for name, value in (("CLIENT_NAME", kit.party), ("TOKEN", token)):
        request.set_header(getattr(components.CellMessageHeaderKeys, name), value)
    request.set_header(components.MessageHeaderKey.ORIGIN, kit.party)
    return request


def test_a_second_place_is_named_even_if_only_its_login_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kits = kits_of(tmp_path, trio_config())
    for kit in kits.values():
        write_kit(kit)
    monkeypatch.setattr(components, "end_with_parent", lambda parent: None)
    component, server, clock = components.CoordinatorComponent(str(kits[COORDINATOR].path)), Server(), Clock()
    component.connect(server)
    component.mailbox.clock = clock
    component.mailbox.end()  # so that nobody's question is held
    for login in ("first", "first", "second", "second", "second"):
        server.name_to_clients["aster"] = Login(login)
        reply = component.exchange(asking(kits["aster"], "first"))
        clock.now += 20
    assert unpack(reply.payload, kits["aster"].agreement.id, 2**40).fields["twice"] is True
    assert journal_path(kits[COORDINATOR]).read_text().count("aster runs in two places") == 1


def test_a_site_in_two_places_says_so_once(tmp_path: Path) -> None:
    kit = kits_of(tmp_path, trio_config())["aster"]
    agent = agent_of(kit, lambda news: Message("wait", news.federation, {"twice": True}))
    for _ in range(3):
        agent.alive("round-1")
    assert journal_path(kit).read_text().count("this site runs in two places") == 1


class Silence:
    """What FLARE returns when the coordinator does not answer."""

    payload = None

    def get_header(self, name: str) -> str:
        return "timeout"


@pytest.mark.parametrize(("problem", "advised"), [("", True), ("the coordinator cannot be reached", False)])
def test_a_site_without_answers_on_a_working_connection_gets_a_hint(
    problem: str, advised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLARE knows sites by their names: of two processes with one name, one may never receive an answer."""
    kit = kits_of(tmp_path, trio_config())["aster"]
    write_kit(kit)
    monkeypatch.setattr(components, "end_with_parent", lambda parent: None)
    monkeypatch.setattr(agent, "connection_problem", lambda kit: problem)
    component = components.SiteComponent(str(kit.path))
    component.connect(SimpleNamespace(cell=SimpleNamespace(send_request=lambda **options: Silence())))
    assert Agent(kit, Journal(kit), component).exchange(ready()) is None
    journal = journal_path(kit).read_text()
    assert "the coordinator is out of reach (FLARE says timeout)" in journal
    assert ("if this site runs in a second place" in journal) == advised
