"""A site's last phase, which needs no coordinator: train the control without the other sites, and export the model.

The agent enters this phase when the coordinator reports that all rounds are done, and stores that fact on disk. A site
that dies in this phase is restarted without the transport, because the coordinator may no longer run.
"""

import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

from factorized_fl.core.files import write_atomically
from factorized_fl.silo.agreement import Kit, read_kit
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.keeper import Trainer
from factorized_fl.silo.messages import Message
from factorized_fl.silo.status import write_status

_FILE = "ended"
_LOOK = 0.5


def remember_end(kit: Kit) -> None:
    """Store that the coordinator has reported the end of all rounds."""
    write_atomically(kit.path / _FILE, kit.agreement.id.encode())


def has_ended(kit: Kit) -> bool:
    """True if the coordinator has reported to this site that all rounds of its federation are done."""
    path = kit.path / _FILE
    return path.is_file() and path.read_bytes() == kit.agreement.id.encode()


def finish(kit: Kit, journal: Journal, trainer: Trainer) -> None:
    """Store that the rounds are over, and let the trainer make the model."""
    remember_end(kit)
    making = partial(write_status, kit, "making the model")
    making()
    trainer.ask(Message("end", kit.agreement.id), making)
    trainer.close()
    write_status(kit, "done")
    journal("done: the model is in model/" if kit.model.is_dir() else "done, without a model")


def end_with_parent(parent: int) -> None:
    """Start a thread that ends this process as soon as its supervisor is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def finish_later(folder: Path) -> None:
    """Resume the last phase of a site after a crash."""
    end_with_parent(os.getppid())
    kit = read_kit(folder)
    journal = Journal(kit)
    journal("all rounds are done: continuing with the model")
    finish(kit, journal, Trainer(kit, journal))


if __name__ == "__main__":
    finish_later(Path(sys.argv[1]))
