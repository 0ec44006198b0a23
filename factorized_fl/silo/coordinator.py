"""The coordinator's rounds: mix what was last received, send, collect with a deadline, check, keep.

It holds what travels and nothing else: no image, no label, no class name, no classifier.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from factorized_fl.core.errors import Damaged, UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.core.ledger import Load, count_traffic
from factorized_fl.core.payload import encode
from factorized_fl.core.views import Cost, Mixing, Tensors
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import Record, RunDirectory
from factorized_fl.silo import control
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.ending import Ending
from factorized_fl.silo.mailbox import Mailbox
from factorized_fl.silo.memory import Memory
from factorized_fl.silo.messages import BadMessage, Message
from factorized_fl.silo.questions import Questions
from factorized_fl.silo.status import read_status, write_status
from factorized_fl.silo.updates import Update, read_update
from factorized_fl.simulate.rounds import make_record
from factorized_fl.simulate.run import summarise


class Coordinator:
    """The coordinator's state and its loop over the rounds."""

    def __init__(self, kit: Kit, mailbox: Mailbox, log: Callable[[str], None]) -> None:
        self.kit, self.mailbox, self.log = kit, mailbox, log
        self.config, self.agreement, self.sites = kit.config, kit.agreement, kit.agreement.sites
        self.memory = Memory(self.config, self.sites)
        self.ending = Ending(kit, mailbox, log)
        self.directory = RunDirectory(kit.run)
        self.stop = threading.Event()
        self.questions = Questions(kit.agreement, mailbox, self.stop, self._strike)
        self.round = 0
        self.note = "starting"
        self.declined: set[int] = set()  # sites that refused this round's download
        self.seconds: list[float] = []  # of each round so far
        self.accuracy: dict[int, float] = {}  # the last accuracy of each site that reports it

    # -- the rounds

    def run(self) -> bool:
        """Runs all remaining rounds; returns whether the federation is complete."""
        with self.directory.lock():
            self._count_on()
            done = self._restore()
            if (aside := control.recall_aside(self.kit)) is not None:
                self.memory.trust_all_but({k for k, site in enumerate(self.sites) if site in aside})
            if done:
                self.log(f"going on after round {done}")
            self.directory.begin(self.config, describe_environment(self.config.seed, "cpu"), self._who(), done)
            self.seconds = [line["seconds"] for line in self.directory.timing()]
            self.accuracy = _accuracies(self.directory.metrics())
            self.round = done
            if not done:
                self._gather()
            for round_number in range(done + 1, self.config.rounds + 1):
                if self.stop.is_set():
                    return False
                self._one_round(round_number)
            if self.stop.is_set():
                return False
            self.directory.save_summary(summarise(self.directory))
            self.mailbox.end()
            self._tell("complete")
        return True

    def _restore(self) -> int:
        """Restores the last complete round on disk, or the one before it, which sites keep as well."""
        if self._is_damaged() and self.directory.previous_path.exists():
            self.log("the checkpoint is damaged: trying the round before")
            os.replace(self.directory.checkpoint_path, self.directory.path / "damaged.safetensors")
            os.replace(self.directory.previous_path, self.directory.checkpoint_path)
        if self._is_damaged():
            raise UserError(
                f"The checkpoint '{self.directory.checkpoint_path}' is damaged, and sites cannot start again: "
                "restore it from a copy, or begin again with new kits (`ffl federation new`)."
            )
        return self.directory.rounds_done(self.config, resume=True)

    def _is_damaged(self) -> bool:
        """Loads the checkpoint, if there is one; returns whether it is damaged."""
        try:
            if self.directory.checkpoint_round():
                with self.directory.reading_checkpoint():
                    self.memory.load(self.directory.load_checkpoint())
        except Damaged:
            return True
        return False

    def _count_on(self) -> None:
        """Adds the bytes that earlier processes of this coordinator counted, if their status can be read."""
        with contextlib.suppress(KeyError, TypeError):
            for row in (read_status(self.kit) or {"sites": []})["sites"]:
                self.mailbox.count(row["name"], row["up_bytes"], row["down_bytes"])

    def _gather(self) -> None:
        """Before the first round: waits for all sites, or for the deadline and a quorum."""
        until = time.monotonic() + self.agreement.deadline
        while not self.stop.is_set():
            there = sum(self.mailbox.connected(site) for site in self.sites)
            if there == len(self.sites) or (time.monotonic() > until and there >= self.agreement.needed):
                return
            self._tell(f"waiting for sites: {there} of {len(self.sites)} are here")
            self.stop.wait(0.2)

    def _one_round(self, round_number: int) -> None:
        began, before = time.monotonic(), self.mailbox.wire_bytes
        self.round = round_number
        self._control()
        chosen, _ = self.memory.sampling.draw(round_number)
        mixing: Mixing | None = None
        sent: dict[int, Tensors] = {}
        down: dict[int, Load] = {}
        good: dict[int, Update] = {}
        again = True
        while again:
            for k in range(len(self.sites)):
                self._learn_size(k)
            self._tell("mixing")
            asked = [k for k in chosen if k not in good and not self.memory.aside[k]]
            downloads, mixed = self.memory.prepare(round_number, asked, partial(self.questions.losses, round_number))
            mixing, sent, down = downloads.mixing or mixing, sent | mixed, down | downloads.loads()
            again = self._ask(round_number, chosen, mixing, sent, good)
        if self.stop.is_set():
            return
        self.memory.server.begin_updates()
        records = []
        for k in sorted({*sent, *good}):
            load = down.get(k, Load())
            if k in good:
                if not self.memory.received[k]:  # it may have connected and declared its size during the round
                    self._learn_size(k)
                update = good[k]
                up = self.memory.keep(k, update.tensors, sent.get(k, {}))
                cost = count_traffic(load, up, self.memory.formula(update.tensors))
                records.append(make_record(round_number, k, self.sites[k], update.result, update.trained, cost))
            else:
                records.append(
                    make_record(round_number, k, self.sites[k], None, None, count_traffic(load, None, Cost(0, 0)))
                )
        if round_number == self.config.rounds:
            ever = self.memory.received.nonzero().flatten().tolist()
            records += self.questions.tests(round_number, [k for k in ever if k not in good])
        if mixing is not None:
            self.directory.save_mixing(round_number, mixing)
        self.directory.append("metrics.jsonl", sorted(records, key=lambda record: record["client"]))
        self.accuracy |= _accuracies(records)
        seconds = time.monotonic() - began
        self.seconds.append(seconds)
        working = max((update.seconds for update in good.values()), default=0.0)
        wire_up, wire_down = (now - then for now, then in zip(self.mailbox.wire_bytes, before, strict=True))
        timing = {
            "round": round_number,
            "seconds": seconds,
            "slowest_site": working,
            "wire_up": wire_up,
            "wire_down": wire_down,
        }
        self.directory.append("timing.jsonl", [timing])
        self.directory.keep_previous()
        self.directory.save_checkpoint(round_number, self.memory.tensors, federation=self.agreement.id)
        write_atomically(self.kit.run / "clients.json", json.dumps(self._who(), indent=2).encode())
        missing = [self.sites[k] for k in chosen if k not in good]
        without = f", without {', '.join(missing)}" if missing else ""
        self.log(f"round {round_number} of {self.config.rounds} is complete{without}")

    def _ask(
        self,
        round_number: int,
        chosen: Sequence[int],
        mixing: Mixing | None,
        sent: dict[int, Tensors],
        good: dict[int, Update],
    ) -> bool:
        """Asks until a quorum has sent updates that pass all checks; a bad update counts against its sender.

        Sites that reject the download are not penalised. Returns True if the download must be computed again.
        """
        enough = min(self.agreement.needed, len(chosen))
        self.declined = set()
        while len(good) < enough:
            if self._control():
                for k in [k for k in good if self.memory.aside[k]]:
                    del good[k]
                return True
            ask = [k for k in chosen if k not in good and k not in self.declined and not self.memory.aside[k]]
            if len(ask) + len(good) < enough:
                self._tell(self._what_helps(enough))
                if self.stop.wait(0.5):
                    break
                continue
            self._tell("waiting for answers")
            self.mailbox.post({self.sites[k]: self._request(round_number, k, mixing, sent.get(k)) for k in ask})
            wanted = {self.sites[k] for k in ask}
            answers = self.mailbox.collect(
                wanted, enough - len(good), self.agreement.deadline, self.stop, tick=self._tell
            )
            if self.stop.is_set():
                break
            for site, answer in answers.items():
                self._read(self.sites.index(site), answer, sent, good)
        return False

    def _read(self, k: int, answer: Message, sent: dict[int, Tensors], good: dict[int, Update]) -> None:
        """Takes one site's answer: an update, a refusal, or a strike."""
        try:
            if answer.text("result") == "refused":
                self.log(f"{self.sites[k]}: refused this round: {answer.text('reason')}")
                self.declined.add(k)
                return
            update = read_update(answer, self.memory.server.expected(k, sent.get(k, {})))
            self.memory.check(update.tensors)
            good[k], self.memory.strikes[k] = update, 0
        except BadMessage as error:
            self._strike(k, str(error))

    def _what_helps(self, enough: int) -> str:
        """Why the round does not go on, and what the operator can do."""
        if not self.declined:
            return f"waiting: a quorum of {enough} needs a site readmitted"
        names = ", ".join(self.sites[k] for k in sorted(self.declined))
        return f"waiting: {names} refused this round: exclude the site that spoiled it, or readmit {names} to ask again"

    def _request(self, round_number: int, k: int, mixing: Mixing | None, tensors: Tensors | None) -> Message:
        fields = {"request": f"round-{round_number}", "round": round_number, "download": bool(tensors)}
        fields["models"] = self._models(k, mixing)
        return Message("round", self.agreement.id, fields, encode(tensors) if tensors else b"")

    @staticmethod
    def _models(k: int, mixing: Mixing | None) -> int:
        return 1 if mixing is None or mixing.downloads is None else int(mixing.downloads[k])

    def farewell(self, seconds: float) -> None:
        """Keeps serving for up to `seconds` so that sites can fetch the notice that the federation is complete."""
        self.ending.wait(seconds, self.stop, self._tell)
        self._tell()

    def _strike(self, k: int, reason: str) -> None:
        aside = self.memory.strike(k)
        self.log(f"{self.sites[k]}: dropped its answer, as {reason} ({int(self.memory.strikes[k])} in a row)")
        if aside:
            self._remember_aside()
            self.log(f"{self.sites[k]}: set aside; `ffl federation readmit` lets it in again")

    # -- what is written

    def _learn_size(self, k: int) -> None:
        if complaint := self.memory.learn_size(k, self.mailbox.lines[self.sites[k]].train):
            self.mailbox.note(self.sites[k], complaint)

    def _who(self) -> list[Record]:
        """The sites for clients.json, as far as the coordinator may know them."""
        nothing = {"classes": [], "validation": 0, "test": 0, "holdout": 0}
        return [
            {"name": site, "domain": site, "train": int(size) if received else 0, **nothing}
            for site, size, received in zip(self.sites, self.memory.sizes, self.memory.received, strict=True)
        ]

    def _control(self) -> bool:
        """Carries out the operator's requests; returns whether the download must be computed again."""
        wishes = control.take(self.kit)
        if wishes is None:
            self.log(f"{control.CONTROL} cannot be read and is ignored: ask again with `ffl federation`")
            control.done(self.kit)
            return False
        for site in wishes.get("readmit", ()):
            if site in self.sites:
                k = self.sites.index(site)
                self.memory.readmit(k)
                self.declined.discard(k)
                self.log(f"{site}: readmitted by the operator")
        excluded = [site for site in wishes.get("exclude", ()) if site in self.sites]
        for site in excluded:
            self.memory.set_aside(self.sites.index(site))
            self.log(f"{site}: excluded by the operator; its tensors are no longer sent to any site")
        if wishes:
            self._remember_aside()
            control.done(self.kit)
        return bool(excluded)

    def _remember_aside(self) -> None:
        """Saves which sites are quarantined, so that they stay so if this coordinator dies within the round."""
        control.remember_aside(self.kit, [site for k, site in enumerate(self.sites) if self.memory.aside[k]])

    def _doing(self, k: int, site: str) -> str:
        if self.memory.aside[k]:
            return "set aside"
        if self.mailbox.ended:
            return "has learnt of the end" if site in self.ending.told() else "has not learnt of the end"
        return self.mailbox.doing(site)

    def _tell(self, note: str | None = None) -> None:
        """Writes the status."""
        self.note = note or self.note
        to_do = 0 if self.note == "complete" else self.config.rounds - len(self.seconds)
        rows = [
            {
                "name": site,
                "connected": self.mailbox.connected(site) and not self.ending.closed,
                "doing": self._doing(k, site),
                "images": self.memory.images(k, self.mailbox.lines[site].train),
                "strikes": int(self.memory.strikes[k]),
                "accuracy": self.accuracy.get(k),
                "up_bytes": self.mailbox.lines[site].up,
                "down_bytes": self.mailbox.lines[site].down,
            }
            for k, site in enumerate(self.sites)
        ]
        more = {
            "round": self.round,
            "rounds": self.config.rounds,
            "seconds_left": to_do * sum(self.seconds) / len(self.seconds) if self.seconds else None,
            "sites": rows,
        }
        write_status(self.kit, self.note, more)


def _accuracies(records: Sequence[Record]) -> dict[int, float]:
    return {record["client"]: record["accuracy"] for record in records if record["accuracy"] is not None}
