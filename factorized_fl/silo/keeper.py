"""The trainer's process as its site sees it; neither FLARE nor the coordinator is needed for it."""

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from factorized_fl.silo.journal import Journal
from factorized_fl.silo.messages import Message, pack, unpack
from factorized_fl.silo.plan import Kit
from factorized_fl.silo.trainer import REFUSED, read_frame, write_frame

_ALIVE = 2.0  # seconds between signs of life while a site trains


class Trainer:
    """Asked, waited for, started again when it dies."""

    def __init__(self, kit: Kit, journal: Journal) -> None:
        self.kit, self.journal = kit, journal
        self.pause = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def hello(self, meanwhile: Callable[[], None] = lambda: None) -> Message:
        """Start the process until it says that it is ready."""
        while True:
            time.sleep(self.pause)
            self.pause = min(30.0, 2 * self.pause + 0.5)
            with (self.kit.logs / "trainer.txt").open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "factorized_fl.silo.trainer", str(self.kit.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            (self.kit.path / "trainer.pid").write_text(str(self.process.pid))
            self.frames: queue.Queue[bytes | None] = queue.Queue()
            threading.Thread(target=self._listen, args=(self.process, self.frames), daemon=True).start()
            if (hello := self._next(meanwhile)) is not None:
                return hello
            if (code := self.process.wait()) != REFUSED:  # else it has said why
                self.journal(f"the trainer died (exit code {code}): starting another, log/trainer.txt says more")

    def ask(self, request: Message, meanwhile: Callable[[], None]) -> Message:
        """The trainer's answer, from as many processes as it takes; `meanwhile` is called every few seconds."""
        while True:
            if self.process is None or self.process.poll() is not None:
                self._mourn()
                self.hello(meanwhile)
            assert self.process is not None
            assert self.process.stdin is not None
            try:
                write_frame(self.process.stdin, pack(request))
                answer = self._next(meanwhile)
            except OSError:
                answer = None
            if answer is not None:
                self.pause = 0.0
                return answer
            self._mourn()

    def _mourn(self) -> None:
        if self.process is not None:
            code = self.process.wait()
            self.journal(f"the trainer died (exit code {code}): starting another from the last round on disk")
            self.process = None

    def _next(self, meanwhile: Callable[[], None]) -> Message | None:
        while True:
            try:
                content = self.frames.get(timeout=_ALIVE)
            except queue.Empty:
                meanwhile()
                continue
            return None if content is None else unpack(content, self.kit.plan.id, 2**62)

    @staticmethod
    def _listen(process: "subprocess.Popen[bytes]", frames: "queue.Queue[bytes | None]") -> None:
        assert process.stdout is not None
        while (content := read_frame(process.stdout)) is not None:
            frames.put(content)
        frames.put(None)

    def close(self) -> None:
        """Let it go."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()
