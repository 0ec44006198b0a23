"""The process a site trains in. It may die alone: the agent starts another, which goes on from the site's checkpoint.

It reads requests from its standard input and writes answers to its standard output, each after its length.
"""

import os
import struct
import sys
import time
from pathlib import Path
from typing import IO

from factorized_fl.core.errors import UserError
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.messages import Message, pack, unpack
from factorized_fl.silo.plan import read_kit
from factorized_fl.silo.settings import read_settings

REFUSED = 2  # exit code of a trainer that told the journal what is wrong
_LENGTH = struct.Struct(">Q")
_LOCAL = 2**40  # between two processes of one party the size is nobody's secret


def write_frame(stream: IO[bytes], content: bytes) -> None:
    """Send one message to the other process."""
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next message of the other process, nothing once that is gone."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    content = stream.read(length)
    return content if len(content) == length else None


def main(folder: Path) -> None:
    """Answer requests until the agent is gone."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints must not look like an answer
    kit = read_kit(folder)
    settings = read_settings(kit)
    log = Journal(kit)
    from factorized_fl.results.rundir import RunDirectory
    from factorized_fl.silo.site import Site

    kit.run.mkdir(parents=True, exist_ok=True)
    while True:  # a trainer whose agent died may still be finishing its round
        try:
            with RunDirectory(kit.run).lock():
                site = Site(kit, settings.data, log, device=settings.device, report=settings.report)
                hello = Message("hello", kit.plan.id, {"train": site.train_images})
                write_frame(answers, pack(hello))
                while (content := read_frame(sys.stdin.buffer)) is not None:
                    request = unpack(content, kit.plan.id, _LOCAL)
                    if request.kind == "end":
                        site.finish(settings.alone)
                        answer = Message("done", kit.plan.id)
                    else:
                        answer = site.answer(request)
                    write_frame(answers, pack(answer))
            return
        except UserError as error:
            if "Another process is at work" not in str(error):
                log(f"Error: {error}")
                sys.exit(REFUSED)
            time.sleep(0.2)
        except BrokenPipeError:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
