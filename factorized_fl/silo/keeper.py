"""The trainer's process as its agent sees it. It depends on neither the transport nor the coordinator."""

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.messages import BadMessage, Message
from factorized_fl.silo.trainer import ALIVE, REFUSED, read_frame, write_frame

HUNG = 120.0  # seconds without a heartbeat after which a trainer is ended: it is stopped or frozen
_ALIVE = 2.0  # seconds between heartbeats while a site trains


class Trainer:
    """Sends requests to the trainer's process, and starts the process again when it dies."""

    def __init__(self, kit: Kit, journal: Journal) -> None:
        self.kit, self.journal = kit, journal
        self.pause = 0.0
        self.heard = time.monotonic()  # time of the last heartbeat
        self.process: subprocess.Popen[bytes] | None = None

    def hello(self, meanwhile: Callable[[], None] = lambda: None) -> Message:
        """Start the process, repeatedly if it dies; returns the message with which it reports that it is ready."""
        while True:
            time.sleep(self.pause)
            self.pause = min(30.0, 2 * self.pause + 0.5)
            command = [sys.executable, "-P", "-m", "factorized_fl.silo.trainer", str(self.kit.path)]
            pipe = subprocess.PIPE
            with (self.kit.logs / "trainer.txt").open("ab") as log:
                self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log)
            self.heard = time.monotonic()
            self.answers: queue.Queue[Message | None] = queue.Queue()
            threading.Thread(target=self._listen, args=(self.process, self.answers), daemon=True).start()
            if (hello := self._next(meanwhile)) is not None:
                return hello
            if (code := self.process.wait()) != REFUSED:  # such a trainer has written its error to the journal
                self.journal(f"the trainer died (exit code {code}): starting another, log/trainer.txt says more")

    def ask(self, request: Message, meanwhile: Callable[[], None]) -> Message:
        """The trainer's answer, across restarts of its process; `meanwhile` is called every few seconds."""
        while True:
            if self.process is None or self.process.poll() is not None:
                self._reap()
                self.hello(meanwhile)
            assert self.process is not None
            assert self.process.stdin is not None
            with suppress(OSError):
                write_frame(self.process.stdin, request)
                if (answer := self._next(meanwhile)) is not None:
                    self.pause = 0.0
                    return answer
            self._reap()

    def _reap(self) -> None:
        """Wait for the dead process and write its exit code to the journal."""
        if self.process is not None:
            code = self.process.wait()
            self.journal(f"the trainer died (exit code {code}): starting another from the last round on disk")
            self.process = None

    def _next(self, meanwhile: Callable[[], None]) -> Message | None:
        while True:
            try:
                return self.answers.get(timeout=_ALIVE)
            except queue.Empty:
                meanwhile()
                if self.process is not None and time.monotonic() - self.heard > HUNG:
                    self.journal(f"the trainer has given no sign of life for {HUNG:.0f} s: ending it")
                    self.process.kill()
                    self.heard = time.monotonic()

    def _listen(self, process: "subprocess.Popen[bytes]", answers: "queue.Queue[Message | None]") -> None:
        assert process.stdout is not None
        try:
            while (answer := read_frame(process.stdout, self.kit.agreement.id)) is not None:
                self.heard = time.monotonic()
                if answer.kind != ALIVE:
                    answers.put(answer)
        except BadMessage:  # the process violates the protocol: start another
            process.kill()
        answers.put(None)

    def close(self) -> None:
        """Let the process end."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()
