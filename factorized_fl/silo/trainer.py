"""The process in which a site trains. If it dies, the agent starts another, which resumes from the site's checkpoint.

It reads requests from its standard input and writes answers to its standard output, each with its length before it.
"""

import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from factorized_fl.core.errors import Busy, UserError
from factorized_fl.silo.agreement import read_kit
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.messages import Message, pack, unpack
from factorized_fl.silo.settings import read_settings

ALIVE = "alive"  # the kind of a heartbeat message
_BEAT = 5.0  # seconds between two heartbeats
REFUSED = 2  # exit code of a trainer that has written its error to the journal
_LENGTH = struct.Struct(">Q")
_PAUSE = 0.2  # seconds between two attempts to take the lock
_NO_LIMIT = 2**62  # bytes: messages between two processes of one party are trusted


def write_frame(stream: IO[bytes], message: Message) -> None:
    """Send one message to the other process."""
    content = pack(message)
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def read_frame(stream: IO[bytes], federation: str) -> Message | None:
    """The next message of the other process, None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    content = stream.read(length)
    return unpack(content, federation, _NO_LIMIT) if len(content) == length else None


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock on a run directory, after waiting: the trainer of a dead agent may still be finishing its round."""
    from factorized_fl.results.rundir import RunDirectory

    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(RunDirectory(folder).lock())
                break
            except Busy:
                time.sleep(_PAUSE)
        yield


def _beat(write: Callable[[Message], None], federation: str) -> None:
    """Send a heartbeat every few seconds."""
    with suppress(OSError, ValueError):  # the agent is gone, or this process ends
        while True:
            write(Message(ALIVE, federation))
            time.sleep(_BEAT)


def answer_requests(folder: Path) -> None:
    """Answer requests until the agent is gone."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of a library must not look like an answer
    kit = read_kit(folder)
    settings = read_settings(kit)
    log, federation = Journal(kit), kit.agreement.id
    writing = threading.Lock()

    def write(message: Message) -> None:
        with writing:
            write_frame(answers, message)

    threading.Thread(target=_beat, args=(write, federation), daemon=True).start()
    try:
        with exclusive(kit.run):
            from factorized_fl.silo.site import Site

            site = Site(
                *(kit, settings.data, log),
                columns=settings.columns,
                device=settings.device,
                report=settings.report,
                metrics=settings.metrics,
            )
            hello = {"train": site.train_images, "agreement": kit.mark, "terms": kit.terms, "done": site.done}
            write(Message("hello", federation, hello))
            while (request := read_frame(requests, federation)) is not None:
                if request.kind == "end":
                    site.finish(settings.alone)
                    write(Message("done", federation))
                else:
                    write(site.answer(request))
    except UserError as error:
        log(f"Error: {error}")
        sys.exit(REFUSED)
    except BrokenPipeError:
        pass


if __name__ == "__main__":
    answer_requests(Path(sys.argv[1]))
