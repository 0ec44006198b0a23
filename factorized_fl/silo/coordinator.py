"""The coordinator's rounds: mix the last updates, send, collect with a deadline, check, keep.

It holds shared tensors only: no image, no label, no class name, no classifier.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.core.ledger import Load, count_traffic
from factorized_fl.core.payload import encode
from factorized_fl.core.views import Cost, Mixing, Tensors
from factorized_fl.results.classes import save_classes
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import Record, RunDirectory
from factorized_fl.results.schema import CONFIG
from factorized_fl.silo import control
from factorized_fl.silo.agreement import Kit, read_json
from factorized_fl.silo.audit import Audit
from factorized_fl.silo.catch_up import continue_from_sites
from factorized_fl.silo.checks import Update, limited, read_update
from factorized_fl.silo.checksum import digest_of
from factorized_fl.silo.mailbox import Mailbox
from factorized_fl.silo.memory import Memory
from factorized_fl.silo.messages import BadMessage, Message
from factorized_fl.silo.norms import ask_norms
from factorized_fl.silo.operator_requests import carry_out, heed_revocations, save_quarantine
from factorized_fl.silo.overview import last_accuracies, seconds_left, site_rows, what_helps
from factorized_fl.silo.pinned import check_model
from factorized_fl.silo.questions import ask_losses, ask_tests
from factorized_fl.silo.relay import SecretRelay
from factorized_fl.silo.sharing import PATIENCE, warn_if_nothing_is_shared
from factorized_fl.silo.status import read_status, write_status
from factorized_fl.silo.transport import CannotContinue
from factorized_fl.silo.visits import receive_visitors
from factorized_fl.simulate.rounds import make_record
from factorized_fl.simulate.run import activation, summarise

MOST_REFUSED = 3  # rounds in a row that a site may refuse before it is quarantined
FAREWELL = 60.0  # seconds that a finished coordinator keeps serving sites that do not know of the end
_LAST_ANSWER = 0.5  # seconds


class Coordinator:
    """The coordinator's state and its loop over the rounds."""

    def __init__(self, kit: Kit, mailbox: Mailbox, log: Callable[[str], None]) -> None:
        self.kit, self.mailbox, self.log = kit, mailbox, log
        self.config, self.agreement, self.sites = kit.config, kit.agreement, kit.agreement.sites
        try:
            check_model(kit)
        except UserError as error:
            raise CannotContinue(f"Error: {error}") from None
        self.memory = Memory(self.config, self.sites)
        self.relay = SecretRelay(self.agreement.id, log) if self.memory.blind is not None else None
        self.told = kit.run / "told.json"  # the sites that have been notified of the end
        mailbox.told_before = read_json(self.told, list) or []
        self.directory = RunDirectory(kit.run)
        self.stop = threading.Event()
        self.audit = Audit(kit)
        self.refused: dict[int, int] = {}  # rounds that a site refused in a row
        self.round = 0
        self.note = "starting"
        self.mixing: Mixing | None = None  # this and the next three belong to the current round
        self.sent: dict[int, Tensors] = {}
        self.others: dict[str, float] = {}  # share of the other sites in what each site receives in this round
        self.peers: dict[int, float] = {}  # effective peers of each site's last download
        self.good: dict[int, Update] = {}
        self.declined: set[int] = set()  # sites that refused the download
        self.timing: list[Record] = []  # seconds, bytes and sharing of each round so far
        self.accuracy: dict[int, float] = {}  # the last accuracy of each site that reports it

    def work(self) -> None:
        """Runs all rounds, then keeps answering until every site knows of the end, for a limited time."""
        self.run()
        receive_visitors(self)
        self.farewell(FAREWELL)
        time.sleep(_LAST_ANSWER)  # the transport may still be sending it
        self.log("the federation is complete")

    # -- the rounds

    def run(self) -> bool:
        """Runs all remaining rounds; returns whether the federation is complete."""
        with self.directory.lock():
            self._count_on()
            self.memory.restore(self.directory, self.agreement.id, self.log)
            done = self._rounds_done()
            if (aside := control.recall_aside(self.kit)) is not None:
                self.memory.trust_all_but(aside)
            heed_revocations(self)
            if done:
                self.log(f"continuing after round {done}")
            environment = describe_environment(self.config.seed, "cpu")
            self.directory.begin(self.config, environment, self.memory.describe(), done)
            self.timing = self.directory.timing()
            self.accuracy = last_accuracies(self.directory.metrics())
            self.round = done
            if not done:
                self._gather()
            done = continue_from_sites(self, done)
            for round_number in range(done + 1, self.config.rounds + 1):
                self._one_round(round_number)
                if self.stop.is_set():
                    return False
            memory = activation(self.memory.method, self.memory.server.state)
            self.directory.save_summary(summarise(self.directory) | memory)
            self.mailbox.end()
            self.audit("end", rounds=self.config.rounds)
            self.tell("complete")
        return True

    def _rounds_done(self) -> int:
        """The last complete round; raises CannotContinue for another configuration, UserError for a full disk."""
        try:
            path = self.directory.path / CONFIG
            before = self.directory.config() if path.exists() else self.config
            extended = replace(before, clients=self.config.clients, rounds=max(before.rounds, self.config.rounds))
            if before != self.config == extended:  # sites or rounds were added
                write_atomically(path, self.config.to_toml().encode())
            return self.directory.rounds_done(self.config, resume=True)
        except UserError as error:
            raise error if isinstance(error.__cause__, OSError) else CannotContinue(str(error)) from None

    def _count_on(self) -> None:
        """Adds the bytes that earlier processes of this coordinator counted, if their status can be read."""
        with suppress(KeyError, TypeError), self.mailbox.lock:
            for row in (read_status(self.kit) or {"sites": []})["sites"]:
                self.mailbox.lines[row["name"]].count_on(row)

    def _gather(self) -> None:
        """Before the first round: waits for all sites, or for the deadline and a quorum."""
        until, logged = time.monotonic() + self.agreement.deadline, -1
        while not self.stop.is_set():
            members = [site for site in self.sites if site not in self.mailbox.revoked]
            connected = [site for site in members if self.mailbox.connected(site)]
            there = len(connected)
            if there != logged:
                self.log(f"{there} of {len(self.sites)} sites are connected: {', '.join(connected) or 'none yet'}")
                logged = there
            if there == len(members) or (time.monotonic() > until and there >= self.agreement.needed):
                self.log(f"round 1 of {self.config.rounds} begins")
                return
            self.tell(f"waiting for sites: {there} of {len(self.sites)} are here")
            self.stop.wait(0.2)

    def say(self, k: int, words: str) -> None:
        """Writes a line about a site to the journal and to the audit log."""
        self.audit("noted", site=self.sites[k], words=words)
        self.log(f"{self.sites[k]}: {words}")

    def save(self, round_number: int) -> None:
        """Saves the state after a round, and keeps that of the round before."""
        self.directory.keep_previous()
        tensors = self.memory.tensors
        tags = {"federation": self.agreement.id, "digest": digest_of(tensors)}
        self.directory.save_checkpoint(round_number, tensors, **tags)
        write_atomically(self.kit.run / "clients.json", json.dumps(self.memory.describe(), indent=2).encode())

    def _one_round(self, round_number: int) -> None:
        began, before = time.monotonic(), self.mailbox.wire_bytes
        self.round, self.mixing, self.sent, self.good = round_number, None, {}, {}
        carry_out(self)
        chosen, _ = self.memory.sampling.draw(round_number)
        loads: dict[int, Load] = {}
        others = self.others = dict[str, float]()
        again = True
        while again:
            self.learn_sizes()
            self.tell("mixing")
            asked = [k for k in chosen if k not in self.good and not self.memory.aside[k]]
            asked = self._with_secret(asked)
            downloads, mixed = self.memory.prepare(round_number, asked, partial(ask_losses, self))
            self.mixing, self.sent = downloads.mixing or self.mixing, self.sent | mixed
            self.peers |= downloads.peers()
            others |= {self.sites[k]: share for k, share in downloads.from_others().items()}
            loads |= downloads.loads()
            again = self._ask(chosen)
        if self.stop.is_set():
            return
        if self.memory.blind is None:  # ciphertexts have no norm
            self.good = limited(self.good, self.memory.own, self.sent, self.agreement.change_limit, self.say)
        else:
            ask_norms(self)
        records = self._keep(loads)
        if round_number == self.config.rounds:
            ever = self.memory.received.nonzero().flatten().tolist()
            records += ask_tests(self, [k for k in ever if k not in self.good])
        if self.mixing is not None:
            self.directory.save_mixing(round_number, self.mixing)
        if self.memory.server.classes is not None:
            save_classes(self.directory.path, round_number, self.memory.server.classes.reports)
        self.directory.append("metrics.jsonl", sorted(records, key=lambda record: record["client"]))
        self.accuracy |= last_accuracies(records)
        seconds = time.monotonic() - began
        working = max((update.seconds for update in self.good.values()), default=0.0)
        up, down = (now - then for now, then in zip(self.mailbox.wire_bytes, before, strict=True))
        timing = {"round": round_number, "seconds": seconds, "slowest_site": working, "wire_up": up, "wire_down": down}
        self.timing.append(timing | {"from_others": others})
        self.directory.append("timing.jsonl", self.timing[-1:])
        self.save(round_number)
        missing = [self.sites[k] for k in chosen if k not in self.good]
        without = f", without {', '.join(missing)}" if missing else ""
        received = ", ".join(f"{site} {share:.1%}" for site, share in others.items())
        if received:
            self.log(f"received from other sites in round {round_number}: {received}")
        self.log(f"round {round_number} of {self.config.rounds} is complete{without}")
        self.audit("complete", round=round_number, sites=[self.sites[k] for k in sorted(self.good)], from_others=others)
        if round_number == PATIENCE and (warning := warn_if_nothing_is_shared(self.timing, self.config.method)):
            self.log(warning)

    def _with_secret(self, asked: Sequence[int]) -> list[int]:
        """Return the sites that have the sites' secret, after handing it over; waits for a quorum of them."""
        if self.relay is None:
            return list(asked)
        self.tell("the sites exchange their secret")

        def ask(requests: Mapping[str, Message]) -> dict[str, Message]:
            return self.collect(requests, 0, self.agreement.deadline, self.tell) if requests else {}

        names = [self.sites[k] for k in asked]
        self.relay.wait_for(min(self.agreement.needed, len(names)), names, ask, self.mailbox.note, self.stop)
        return [k for k in asked if self.sites[k] in self.relay.marks]

    def _ask(self, chosen: Sequence[int]) -> bool:
        """Asks until a quorum has sent good updates; returns whether the download must be computed again."""
        enough = min(self.agreement.needed, len(chosen))
        self.declined = set()
        while len(self.good) < enough and not self.stop.is_set():
            if carry_out(self):
                self.good = {k: update for k, update in self.good.items() if not self.memory.aside[k]}
                return True
            out = {*self.good, *self.declined}
            ask = {self.sites[k]: k for k in chosen if k not in out and not self.memory.aside[k]}
            if self.relay is not None:
                ask = {site: k for site, k in ask.items() if site in self.relay.marks}
            if len(ask) + len(self.good) < enough:
                self.tell(what_helps([self.sites[k] for k in sorted(self.declined)], enough))
                self.stop.wait(0.5)
                continue
            self.tell("waiting for answers")
            requests = {site: self._request(k) for site, k in ask.items()}
            answers = self.collect(requests, enough - len(self.good), self.agreement.deadline, self.tell)
            if not self.stop.is_set():
                for site, answer in answers.items():
                    self._read(ask[site], answer)
        return False

    def collect(
        self,
        requests: Mapping[str, Message],
        enough: int,
        deadline: float,
        tick: Callable[[], None] | None = None,
        from_progress: bool = False,
    ) -> dict[str, Message]:
        """Posts requests; returns the answers to them, as `Mailbox.collect` does."""
        for site, request in requests.items():
            self.audit.message("sent", request, to=site)
        self.mailbox.post(requests)
        answers = self.mailbox.collect(set(requests), enough, deadline, self.stop, tick, from_progress)
        for site, answer in answers.items():
            self.audit.message("received", answer, **{"from": site})
        return answers

    def _read(self, k: int, answer: Message) -> None:
        """Takes one site's answer: an update, a refusal, or a strike."""
        try:
            if answer.text("result") == "refused":
                self.say(k, f"refused this round: {answer.text('reason')}")
                self.declined.add(k)
                self.refused[k] = self.refused.get(k, 0) + 1
                if self.refused[k] >= MOST_REFUSED:
                    self.memory.set_aside(k)
                    save_quarantine(self)
                    self.say(
                        k, f"quarantined after {MOST_REFUSED} refused rounds; `ffl federation readmit` asks it again"
                    )
                return
            update = read_update(answer, self.memory.server.expected(k, self.sent.get(k, {})))
            self.memory.check(update.tensors, self.round)
            self.good[k], self.memory.strikes[k], self.refused[k] = update, 0, 0
            if update.declined:
                self.say(k, f"did not use its download, as {update.declined}; it trained its own tensors")
                self.sent[k] = self.memory.own(k, self.sent.get(k, {}))
                self.others[self.sites[k]] = 0.0
        except BadMessage as error:
            self.strike(k, str(error))

    def _request(self, k: int) -> Message:
        tensors, mixing = self.sent.get(k), self.mixing
        models = 1 if mixing is None or mixing.downloads is None else int(mixing.downloads[k])
        fields = {"request": f"round-{self.round}", "round": self.round, "download": bool(tensors), "models": models}
        fields |= {"peers": self.peers.get(k), "from_others": self.others.get(self.sites[k])}
        return Message("round", self.agreement.id, fields, encode(tensors) if tensors else b"")

    def _keep(self, loads: Mapping[int, Load]) -> list[Record]:
        """Keeps the round's updates; returns the records of all sites that were asked."""
        self.memory.server.begin_updates()
        records = []
        for k in sorted({*self.sent, *self.good}):
            load, update, peers = loads.get(k, Load()), self.good.get(k), self.peers.get(k)
            result, trained, spent, traffic = None, None, None, count_traffic(load, None, Cost(0, 0))
            if update is not None:
                if not self.memory.received[k]:  # it may have connected and declared its size during the round
                    self.learn_sizes()
                up = self.memory.keep(k, update.tensors, self.sent.get(k, {}))
                traffic = count_traffic(load, up, self.memory.formula(update.tensors))
                result, trained, spent = update.result, update.trained, update.epsilon
            record = make_record(self.round, k, self.sites[k], result, trained, traffic, peers, spent)
            records.append(record | (update.shown if update else {}))
        return records

    def strike(self, k: int, reason: str) -> None:
        """Counts a bad answer of a site, and quarantines the site after several in a row."""
        aside = self.memory.strike(k)
        self.mailbox.lines[self.sites[k]].bad += 1
        self.say(k, f"dropped its answer, as {reason} ({int(self.memory.strikes[k])} in a row)")
        if aside:
            save_quarantine(self)
            self.say(k, "quarantined; `ffl federation readmit` lets it in again")

    def farewell(self, seconds: float) -> None:
        """Keeps serving for up to `seconds` so that sites can fetch the notice that the federation is complete."""
        self.mailbox.see_off(seconds, self.stop, self.tell)
        told = [site for site in sorted(self.sites) if self.mailbox.knows_end(site)]
        write_atomically(self.told, json.dumps(told).encode())
        self.tell()

    # -- the declared sizes, and the status

    def learn_sizes(self) -> None:
        """Takes each site's declared number of training images, which is fixed with the site's first update."""
        declared = {k: line.train for k, line in enumerate(self.mailbox.lines.values()) if line.train is not None}
        for k, words in self.memory.learn_sizes(declared).items():
            self.mailbox.note(self.sites[k], words)

    def tell(self, note: str | None = None) -> None:
        """Writes the status."""
        self.note = note or self.note
        rows = site_rows(self.memory, self.mailbox, self.peers, self.accuracy, self.timing)
        left = seconds_left(self.timing, 0 if self.note == "complete" else self.config.rounds - len(self.timing))
        more = {"round": self.round, "rounds": self.config.rounds, "seconds_left": left, "sites": rows}
        write_status(self.kit, self.note, more)
