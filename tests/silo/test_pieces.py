"""Large messages over slow and broken connections: every piece has its own time limit, and nothing arrives twice."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorized_fl.core.errors import UserError
from factorized_fl.silo import agent, pieces
from factorized_fl.silo.agent import Agent
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.mailbox import Mailbox
from factorized_fl.silo.messages import BadMessage, Message, pack, unpack
from factorized_fl.silo.pieces import WHOLE, Counter, Courier, Pace
from factorized_fl.silo.settings import Settings, read_settings, save_settings, site_limit
from factorized_fl.silo.transport import Unreachable
from tests.silo.parties import kits_of, trio_config

ID = "f" * 16
MEGABIT = 125_000.0  # bytes per second


class SlowLine:
    """A connection with so many bytes per second each way, whose time is counted and not spent."""

    def __init__(self, box: Mailbox, speed: float, lose: tuple[int, ...] = ()) -> None:
        self.box, self.speed, self.lose = box, speed, lose
        self.now, self.asked, self.sent = 0.0, 0, 0

    def ask(self, question: bytes, seconds: float) -> bytes:
        self.asked += 1
        self.sent += len(question)
        answer = self.box.answer("aster", (), question, hold=0.0)
        needed = (len(question) + len(answer)) / self.speed
        self.now += min(needed, seconds)
        if needed > seconds or self.asked in self.lose:
            raise Unreachable("timeout")
        return answer


class Echo:
    """A trainer that answers each request with a payload of the same size."""

    def __init__(self, kit: Kit, journal: Journal) -> None:
        self.kit = kit

    def hello(self) -> Message:
        return Message("hello", ID, {"train": 5, "agreement": ""})

    def ask(self, request: Message, meanwhile: object) -> Message:
        fields = {"request": request.fields["request"], "result": "trained", "round": 1}
        return Message("answer", ID, fields, request.payload)

    def close(self) -> None: ...


def exchange_once(tmp_path: Path, size: int, speed: float, monkeypatch: pytest.MonkeyPatch, lose=()) -> SlowLine:
    """One request and its answer of so many bytes, through an agent; the line knows the seconds and the bytes."""
    kit = kits_of(tmp_path, trio_config(), largest=size + 10_000)["aster"]
    box = Mailbox(ID, ("aster",), largest=size + 10_000)
    line = SlowLine(box, speed, lose)
    box.clock = lambda: line.now
    monkeypatch.setattr(agent, "Trainer", Echo)
    monkeypatch.setattr(agent, "finish", lambda *_: None)
    monkeypatch.setattr(agent, "connection_problem", lambda kit: "")
    monkeypatch.setattr(agent.time, "sleep", lambda seconds: None)
    payload = bytes(range(256)) * (size // 256)
    box.post({"aster": Message("round", ID, {"request": "round-1", "round": 1}, payload)})
    party = Agent(kit, Journal(kit), line)
    party.courier.clock = lambda: line.now
    ended = threading.Event()

    def work() -> None:
        try:
            party.work()
        finally:
            ended.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    answers = box.collect({"aster"}, 1, 1e9, ended)
    box.end()
    thread.join(20)
    assert not thread.is_alive()
    assert answers["aster"].payload == payload
    return line


def test_eleven_megabytes_pass_a_connection_of_one_megabit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = exchange_once(tmp_path, 11_000_000, MEGABIT, monkeypatch)
    assert 176 < line.now < 190  # 22 MB at 125 kB/s
    assert line.sent < 11_100_000


def test_a_broken_connection_continues_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = exchange_once(tmp_path, 3_000_000, MEGABIT, monkeypatch, lose=(3, 6, 9, 12, 15))
    assert line.sent < 3_000_000 + 5 * WHOLE + 100_000


@pytest.mark.parametrize("speed", [2_000.0, 1e9])
def test_very_slow_and_fast_connections(speed: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = exchange_once(tmp_path, 600_000, speed, monkeypatch)
    assert line.asked < (200 if speed < 1e6 else 20)


def test_a_limit_of_bandwidth_is_kept(tmp_path: Path) -> None:
    slept: list[float] = []
    pace = Pace(limit=100_000.0, sleep=slept.append)
    for _ in range(4):
        pace.took(pace.size, 0.1)
    assert pace.size <= 2**18
    assert sum(slept) > 4.0
    kit = kits_of(tmp_path, trio_config())["aster"]
    assert site_limit(kit) == 0
    save_settings(kit, Settings(tmp_path, limit=2.5))
    assert site_limit(kit) == 2.5
    file = kit.path / "site.toml"
    file.write_text(file.read_text().replace("limit = 2.5\n", ""))  # written by an earlier version
    assert read_settings(kit) == Settings(tmp_path)
    file.write_text("limit = -1\n" + file.read_text())
    with pytest.raises(UserError, match="has no valid 'limit', a number of megabits"):
        read_settings(kit)


@given(st.binary(min_size=1, max_size=500), st.lists(st.integers(1, 60), min_size=1), st.data())
def test_pieces_in_any_order_and_repetition_give_the_message(content: bytes, sizes: list[int], data) -> None:
    whole = pack(Message("answer", ID, {"request": "round-1"}, content))
    counter, offset, name = Counter(), 0, pieces._name_of(whole)
    while True:
        size = sizes[offset % len(sizes)]
        start = data.draw(st.sampled_from([offset, 0, max(0, offset - size)]))
        part = Message(
            "piece", ID, {"transfer": name, "offset": start, "total": len(whole)}, whole[start : start + size]
        )
        reply = counter.take(part, 10_000)
        assert reply is not None
        if reply.kind == "answer":
            break
        assert reply.fields["offset"] >= offset
        offset = reply.fields["offset"]
    assert reply.payload == content
    assert counter.take(part, 10_000) is None  # its last piece again, because the reply was lost


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"total": 10**9}, "total is 1000000000"),
        ({"offset": 99}, "offset is 99"),
        ({"offset": -1}, "offset is -1"),
        ({"transfer": 5}, "transfer is not a short word"),
        ({"total": 3}, "longer than announced"),
        ({"transfer": "0" * 32}, "do not fit together"),
    ],
)
def test_invalid_pieces_are_refused(change: dict, why: str) -> None:
    fields = {"transfer": "a" * 32, "offset": 0, "total": 5, **change}
    with pytest.raises(BadMessage, match=why):
        Counter().take(Message("piece", ID, fields, b"12345"), 1000)


def test_a_request_that_is_no_longer_open_is_not_fetched() -> None:
    box = Mailbox(ID, ("aster",), largest=10**7)
    request = Message("round", ID, {"request": "round-1"}, bytes(WHOLE + 1))
    box.post({"aster": request})
    fetches = 0

    def ask(message: Message) -> Message:
        nonlocal fetches
        fetches += message.kind == "fetch"
        if fetches == 2:
            box.post({"aster": replace(request, fields={"request": "round-2"}, payload=b"small")})
        return unpack(box.answer("aster", (), pack(message), hold=0), ID, 10**7)

    courier = Courier(ask, ID, 10**7, Pace(size=100_000))
    reply = courier.exchange(Message("ready", ID, {"train": 5, "agreement": ""}), {"agreement": ""})
    assert (reply.fields["request"], reply.payload) == ("round-2", b"small")
    assert box.doing("aster") == "waiting" or box.lines["aster"].transfers.moving
