"""Recovery from restarts on either side, repeated requests, damaged files, slow and lost sites."""

import shutil
import threading
import time
from pathlib import Path

import pytest
import torch

from factorized_fl.core.payload import encode
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo import catch_up, control, questions
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.mailbox import Mailbox
from factorized_fl.silo.memory import Memory
from factorized_fl.silo.messages import Message, pack
from factorized_fl.silo.site import Site
from factorized_fl.silo.status import read_status, write_status
from tests.silo.loopback import Loopback
from tests.silo.parties import NAMES, kits_of, make_sites, trio_config, write_trio
from tests.silo.test_trust import Handler, round_request


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trio(tmp_path_factory.mktemp("trio"))


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    """The metrics of every party of a run without faults."""
    kits = kits_of(tmp_path_factory.mktemp("undisturbed"), trio_config("clustered-fl"))
    sites = make_sites(kits, data)
    assert Loopback(kits, sites).run()
    return {party: RunDirectory(kit.run).metrics() for party, kit in kits.items()}


def test_a_restarted_coordinator_continues_the_byte_counts(data: Path, tmp_path: Path) -> None:
    kits = kits_of(tmp_path, trio_config(rounds=2))
    sites = make_sites(kits, data)
    assert Loopback(kits, sites).run()
    counted = told_bytes(kits[COORDINATOR])
    assert all(up > 0 and down > 0 for up, down in counted)
    assert Loopback(kits, {}).run()  # all is done: nothing is sent any more
    assert told_bytes(kits[COORDINATOR]) == counted
    write_status(kits[COORDINATOR], "complete", {"round": 2, "rounds": 2, "sites": [{"name": "nobody"}, 3]})
    assert Loopback(kits, {}).run()


def test_a_coordinator_continues_from_an_early_checkpoint(data: Path, tmp_path: Path) -> None:
    """Such a checkpoint names no senders of the last round, and no fingerprints that follow from what is shared."""
    config = trio_config("factorized-fl-beta", rounds=2)
    kits = kits_of(tmp_path, config)
    parties = Loopback(kits, make_sites(kits, data))
    assert parties.run()
    memory = parties.coordinator.memory
    assert memory.server.vectors is not None
    early = {name: tensor.clone() for name, tensor in memory.tensors.items() if name not in ("updated", "vectors")}
    restored = Memory(config, NAMES)
    restored.load(early)
    assert restored.server.vectors is not None
    assert torch.equal(restored.server.vectors, memory.server.vectors)
    assert restored.server.updated.tolist() == [True, True, True]


def told_images(kit: Kit) -> list[int | None]:
    status = read_status(kit)
    assert status is not None
    return [site["images"] for site in status["sites"]]


def test_a_coordinator_remembers_how_many_images_sites_have(data: Path, tmp_path: Path) -> None:
    kits = kits_of(tmp_path, trio_config(rounds=2))
    sites = make_sites(kits, data)
    images = [site.train_images for site in sites.values()]
    assert Loopback(kits, sites).run()
    assert told_images(kits[COORDINATOR]) == images
    control.remember_aside(kits[COORDINATOR], ["birch"])
    assert Loopback(kits, {}).run()  # nobody declares anything any more
    assert told_images(kits[COORDINATOR]) == images
    fresh = Loopback(kits_of(tmp_path / "fresh", trio_config()), {})
    fresh.coordinator.tell("waiting")
    assert told_images(fresh.kits[COORDINATOR]) == [None, None, None]


def test_a_site_that_joins_during_the_first_round_has_its_full_weight(data: Path, tmp_path: Path) -> None:
    kits = kits_of(tmp_path, trio_config(rounds=1), deadline=2.0)
    sites = make_sites(kits, data)
    parties = Loopback(kits, {name: sites[name] for name in ("aster", "birch")})

    class Bringing(Handler):
        def answer(self, request: Message) -> Message:
            parties.sites["cedar"] = sites["cedar"]
            parties.start("cedar")
            return self.site.answer(request)

    parties.sites["aster"] = Bringing(sites["aster"])
    assert parties.run()
    assert parties.coordinator.memory.received.all()
    assert parties.coordinator.memory.sizes.tolist() == [site.train_images for site in sites.values()]


def told_bytes(kit: Kit) -> list[tuple[int, int]]:
    """Bytes up and down of every site, from the status."""
    status = read_status(kit)
    assert status is not None
    return [(site["up_bytes"], site["down_bytes"]) for site in status["sites"]]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_coordinator_that_dies_in_a_round_goes_on_from_its_checkpoint(
    at: int, data: Path, tmp_path: Path, undisturbed: dict
) -> None:
    """Sites that have trained the round already answer again from disk: no site trains it twice."""
    kits = kits_of(tmp_path, trio_config("clustered-fl"))
    said: list[str] = []
    sites = make_sites(kits, data, said.append)
    parties = Loopback(kits, sites)

    class Fatal(Handler):
        def answer(self, request: Message) -> Message:
            answer = self.site.answer(request)
            if request.whole("round") == at:
                parties.coordinator.stop.set()
                parties.mailbox.end()
            return answer

    parties.sites["birch"] = Fatal(sites["birch"])
    assert not parties.run()
    assert RunDirectory(kits[COORDINATOR].run).checkpoint_round() == at - 1
    second = Loopback(kits, sites)
    assert second.run()
    assert f"answered round {at} again from disk" in said
    for party, kit in kits.items():
        assert RunDirectory(kit.run).metrics() == undisturbed[party]


def test_a_site_that_dies_goes_on_from_its_checkpoint(data: Path, tmp_path: Path, undisturbed: dict) -> None:
    """A new process after every round, and one that dies after training before it could answer."""
    kits = kits_of(tmp_path, trio_config("clustered-fl"))
    sites = make_sites(kits, data)
    parties = Loopback(kits, sites)

    class Dying(Handler):
        def answer(self, request: Message) -> Message:
            Site(kits["aster"], data / "aster", print, report=True).answer(request)  # whose answer nobody hears
            return Site(kits["aster"], data / "aster", print, report=True).answer(request)

    parties.sites["aster"] = Dying(sites["aster"])
    assert parties.run()
    for party, kit in kits.items():
        assert RunDirectory(kit.run).metrics() == undisturbed[party]


def test_a_repeated_request_gives_the_same_bytes_and_no_second_training(data: Path, tmp_path: Path) -> None:
    site = make_sites(kits_of(tmp_path, trio_config()), data)["aster"]
    one = site.answer(round_request(1))
    two = site.answer(round_request(2, site._shared()))
    weights = {name: tensor.clone() for name, tensor in site.federation.tensors.items()}
    assert pack(site.answer(round_request(2, site._shared()))) == pack(two)
    assert pack(site.answer(round_request(1))) == pack(one)  # the round before is kept, too
    assert all(torch.equal(tensor, weights[name]) for name, tensor in site.federation.tensors.items())
    assert [record["round"] for record in RunDirectory(site.kit.run).metrics()] == [1, 2]
    site.answer(round_request(3))
    assert site.answer(round_request(1)).fields["result"] == "refused"


def test_a_repeated_loss_request_gives_the_same_answer_after_more_training(data: Path, tmp_path: Path) -> None:
    """FedFOMO's coordinator dies after the site has trained: its second mixing must be its first."""
    kits = kits_of(tmp_path, trio_config("fedfomo"))
    site = make_sites(kits, data)["aster"]
    site.answer(round_request(1))
    others = {name: tensor + 0.01 for name, tensor in site._shared().items()}
    ask = Message("loss", "f" * 16, {"request": "loss-2-abc", "round": 2}, encode(others))
    first = site.answer(ask).fields["loss"]
    site.answer(round_request(2))
    again = Site(kits["aster"], data / "aster", print, report=True)
    assert again.answer(ask).fields["loss"] == first
    later = Message("loss", "f" * 16, {"request": "loss-3-abc", "round": 3}, encode(others))
    assert again.answer(later).fields["loss"] != first


def test_a_damaged_checkpoint_falls_back_to_the_round_before(data: Path, tmp_path: Path) -> None:
    kits = kits_of(tmp_path, trio_config())
    site = make_sites(kits, data)["aster"]
    for round_number in (1, 2):
        site.answer(round_request(round_number))
    said: list[str] = []
    site.directory.checkpoint_path.write_bytes(b"torn")
    again = Site(kits["aster"], data / "aster", said.append, report=True)
    assert again.done == 1
    assert "checkpoint.safetensors is damaged" in said[0]
    assert [record["round"] for record in RunDirectory(again.kit.run).metrics()] == [1]


def test_a_coordinator_whose_checkpoint_is_damaged_goes_on_from_the_round_before(
    data: Path, tmp_path: Path, undisturbed: dict
) -> None:
    kits = kits_of(tmp_path, trio_config("clustered-fl"))
    sites = make_sites(kits, data)
    parties = Loopback(kits, sites)

    class Fatal(Handler):
        def answer(self, request: Message) -> Message:
            if request.whole("round") == 3:
                parties.coordinator.stop.set()
                parties.mailbox.end()
            return self.site.answer(request)

    parties.sites["birch"] = Fatal(sites["birch"])
    assert not parties.run()
    directory = RunDirectory(kits[COORDINATOR].run)
    directory.checkpoint_path.write_bytes(b"torn")
    second = Loopback(kits, sites)
    assert second.run()
    assert "checkpoint.safetensors is damaged" in second.journal[0]
    assert second.journal[1:3] == ["going back to the round before", "continuing after round 1"]
    for party, kit in kits.items():
        assert RunDirectory(kit.run).metrics() == undisturbed[party]


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 64  # within the numbers of the last tensor
    path.write_bytes(bytes(content))


def test_a_flipped_bit_in_a_checkpoint_is_noticed_and_the_round_before_is_used(data: Path, tmp_path: Path) -> None:
    kits = kits_of(tmp_path, trio_config("fedavg"))
    sites = make_sites(kits, data)
    assert Loopback(kits, sites).run()
    directory = RunDirectory(kits[COORDINATOR].run)
    (directory.path / "summary.json").unlink()
    flip_a_bit(directory.checkpoint_path)
    second = Loopback(kits, sites)
    assert second.run()
    assert "checkpoint.safetensors is damaged (its numbers have changed since they were written)" in second.journal
    assert directory.checkpoint_round() == 3
    said: list[str] = []
    flip_a_bit(sites["aster"].directory.checkpoint_path)
    assert Site(kits["aster"], data / "aster", said.append, report=True).done == 2
    assert "its numbers have changed since they were written" in said[0]


@pytest.mark.parametrize("lost", ["the run", "both checkpoints", "nothing but four rounds"])
@pytest.mark.parametrize("method", ["fedavg", "factorized-fl"])
def test_a_coordinator_without_its_last_rounds_continues_from_what_sites_hold(
    method: str, lost: str, data: Path, tmp_path: Path
) -> None:
    kits = kits_of(tmp_path, trio_config(method, rounds=7))
    sites = make_sites(kits, data)
    parties = Loopback(kits, sites)
    backup = tmp_path / "backup"

    class Fatal(Handler):
        def answer(self, request: Message) -> Message:
            if request.whole("round") == 2:
                shutil.copytree(kits[COORDINATOR].run, backup)
            if request.whole("round") == 6:
                parties.coordinator.stop.set()
                parties.mailbox.end()
            return self.site.answer(request)

    parties.sites["birch"] = Fatal(sites["birch"])
    assert not parties.run()
    run = kits[COORDINATOR].run
    if lost == "both checkpoints":
        for path in (RunDirectory(run).checkpoint_path, RunDirectory(run).previous_path):
            path.write_bytes(b"torn")
    else:
        shutil.rmtree(run)
    if lost == "nothing but four rounds":
        shutil.copytree(backup, run)
    trained = {name: site.done for name, site in sites.items()}
    second = Loopback(kits, sites)
    assert second.run()
    (words,) = (line for line in second.journal if "continuing from their uploads" in line)
    assert f"the sites' is {sorted(trained.values())[1]}" in words
    for name, site in sites.items():
        rounds = [record["round"] for record in RunDirectory(kits[name].run).metrics()]
        # None is trained twice; round 6 may be missing at a site if the two others had done it.
        assert rounds in (list(range(1, 8)), [1, 2, 3, 4, 5, 7])
        assert site.done == 7
    assert RunDirectory(run).checkpoint_round() == 7
    assert RunDirectory(run).summary() is not None
    others = second.coordinator.timing[-1]["from_others"]
    assert len(others) == 3  # it mixes what the sites held


def test_one_site_cannot_make_the_coordinator_skip_rounds() -> None:
    assert catch_up.reached([10**6, 0, 0], 2, 9) == 0
    assert catch_up.reached([7, 6, 3], 2, 9) == 6
    assert catch_up.reached([7, 6, 3], 2, 5) == 5
    assert catch_up.reached([4], 2, 9) == 0


def test_files_of_another_federation_are_refused(data: Path, tmp_path: Path) -> None:
    make_sites(kits_of(tmp_path, trio_config()), data)["aster"].answer(round_request(1))
    with pytest.raises(Exception, match="another federation"):
        make_sites(kits_of(tmp_path, trio_config(), id="e" * 16), data)


def test_a_slow_site_delays_the_others_by_at_most_the_deadline(data: Path, tmp_path: Path) -> None:
    kits = kits_of(tmp_path, trio_config(), deadline=3.0)  # long enough for the others on a busy machine
    sites = make_sites(kits, data)
    parties = Loopback(kits, sites)

    class Slow(Handler):
        def answer(self, request: Message) -> Message:
            time.sleep(6.0 if request.whole("round") == 2 else 0.0)
            return self.site.answer(request)

    parties.sites["cedar"] = Slow(sites["cedar"])
    began = time.monotonic()
    assert parties.run()
    assert time.monotonic() - began < 20
    assert "round 2 of 3 is complete, without cedar" in parties.journal
    assert any("dropped an answer to round-2" in line for line in parties.journal)
    records = RunDirectory(kits[COORDINATOR].run).metrics()
    assert sum(record["steps"] > 0 for record in records if record["client"] < 2) == 6
    late = [record for record in records if record["client"] == 2 and record["round"] == 2]
    assert [(record["accuracy"], record["up_bytes"]) for record in late] == [(None, 0)]
    # The late training is not lost: it is in the site's own records.
    assert [record["round"] for record in RunDirectory(kits["cedar"].run).metrics()][:2] == [1, 2]


def test_a_site_too_slow_to_evaluate_models_is_asked_once_and_keeps_its_own(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "_DEADLINE", 2.0)
    kits = kits_of(tmp_path, trio_config("fedfomo", rounds=2, options={"models": 3}))
    sites = make_sites(kits, data)
    parties = Loopback(kits, sites)
    asked: list[str] = []

    class Slow(Handler):
        def answer(self, request: Message) -> Message:
            if request.kind == "loss":
                asked.append(request.text("request"))
                time.sleep(4.0)
            return self.site.answer(request)

    parties.sites["aster"] = Slow(sites["aster"])
    assert parties.run()
    assert len(asked) == 1
    mixing = RunDirectory(kits[COORDINATOR].run).mixing(2)
    assert mixing["matrix"][0].tolist() == [1, 0, 0]
    assert not mixing["revert"][0]
    assert [record["round"] for record in RunDirectory(kits["aster"].run).metrics()] == [1, 2]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def request(name: str) -> Message:
    return Message("round", "f", {"request": name})


def answer(name: str) -> Message:
    return Message("answer", "f", {"request": name, "result": "trained"})


def test_below_the_quorum_a_round_waits_beyond_its_deadline() -> None:
    box = Mailbox("f", ("a", "b", "c"))
    box.post({site: request("round-1") for site in "abc"})
    found: list[dict] = []
    thread = threading.Thread(target=lambda: found.append(box.collect({"a", "b", "c"}, 2, 0.3, threading.Event())))
    thread.start()
    box.exchange("a", answer("round-1"), hold=0)
    thread.join(1.0)
    assert thread.is_alive()
    box.exchange("b", answer("round-1"), hold=0)
    thread.join(5.0)
    assert found[0].keys() == {"a", "b"}


def test_a_site_offline_at_a_deadline_is_skipped_until_it_reconnects() -> None:
    clock = Clock()
    box = Mailbox("f", ("a", "b"), clock=clock)

    def run_round(name: str, deadline: float, *answering: str) -> set[str]:
        box.post({site: request(name) for site in "ab"})
        for site in answering:
            box.exchange(site, answer(name), hold=0)
        return set(box.collect({"a", "b"}, 1, deadline, threading.Event()))

    assert run_round("round-1", 0.0, "a") == {"a"}
    assert run_round("round-2", 1e9, "a") == {"a"}  # b is known to be away: no deadline to sit out
    assert run_round("round-3", 1e9, "a", "b") == {"a", "b"}
    assert not box.absent
    clock.now += 60
    assert not box.connected("b")


def test_a_connected_but_slow_site_is_skipped_until_it_answers() -> None:
    clock = Clock()
    box = Mailbox("f", ("a", "b"), clock=clock)

    def run_round(name: str, deadline: float, late: str = "") -> set[str]:
        box.post({site: request(name) for site in "ab"})
        box.exchange("b", Message("busy", "f", {"request": "round-1"}), hold=0)  # it says so for ever
        if late:
            box.exchange("b", answer(late), hold=0)
        box.exchange("a", answer(name), hold=0)
        return set(box.collect({"a", "b"}, 1, deadline, threading.Event()))

    assert run_round("round-1", 0.0) == {"a"}
    assert box.connected("b")
    assert run_round("round-2", 1e9) == {"a"}  # no second deadline
    assert run_round("round-3", 1e9) == {"a"}
    assert run_round("round-4", 0.0, late="round-1") == {"a"}  # waited for again, and slow again
    assert box.lines["b"].slow


def test_a_newer_poll_supersedes_pending_ones() -> None:
    box = Mailbox("f", ("a",))
    ready = Message("ready", "f", {"train": 5})
    held: list[Message] = []
    threads = [threading.Thread(target=lambda: held.append(box.exchange("a", ready, hold=60.0))) for _ in range(20)]
    for thread in threads:
        thread.start()
    box.exchange("a", ready, hold=0)
    for thread in threads:
        thread.join(10)
    assert [message.kind for message in held] == ["wait"] * 20


def test_faults_do_not_fill_the_journal() -> None:
    clock, said = Clock(), []
    box = Mailbox("f", ("a", "b"), said.append, clock=clock)
    for _ in range(300):
        box.exchange("a", answer("round-1"), hold=0)
    box.exchange("b", answer("round-1"), hold=0)
    clock.now += 61
    box.exchange("a", answer("round-7"), hold=0)
    assert said == [
        *["a: dropped an answer to round-1, which is not an open request"] * 20,
        "b: dropped an answer to round-1, which is not an open request",
        "a: dropped an answer to round-7, which is not an open request (and 280 more faults before)",
    ]


def test_late_answers_and_unknown_sites_change_nothing() -> None:
    said: list[str] = []
    box = Mailbox("f", ("a",), said.append)
    assert box.exchange("a", Message("ready", "f", {"train": 5}), hold=0).kind == "wait"
    box.post({"a": request("round-2")})
    assert box.exchange("a", answer("round-1"), hold=0).fields["request"] == "round-2"
    assert said == ["a: dropped an answer to round-1, which is not an open request"]
    assert box.lines["a"].train == 5
    with pytest.raises(KeyError):
        box.exchange("nobody", answer("round-2"), hold=0)
    box.exchange("a", answer("round-2"), hold=0)
    box.end()
    assert box.exchange("a", Message("ready", "f", {"train": 5}), hold=0).kind == "end"
