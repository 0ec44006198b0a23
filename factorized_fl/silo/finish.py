"""A site's last phase, which needs nobody else: a model trained alone to compare with, and the model out.

The agent goes into it when the coordinator says that all is done. That is kept on disk, so that a site which dies here
is started again without FLARE, for the coordinator may have gone home.
"""

import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

from factorized_fl.core.files import write_atomically
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.keeper import Trainer
from factorized_fl.silo.messages import Message
from factorized_fl.silo.plan import Kit, read_kit
from factorized_fl.silo.status import write_status

_FILE = "ended"
_LOOK = 0.5


def remember_end(kit: Kit) -> None:
    """Keep that the coordinator has said that all rounds are done."""
    write_atomically(kit.path / _FILE, kit.plan.id.encode())


def has_ended(kit: Kit) -> bool:
    """Whether this site was told that all rounds of its federation are done."""
    path = kit.path / _FILE
    return path.is_file() and path.read_bytes() == kit.plan.id.encode()


def finish(kit: Kit, journal: Journal, trainer: Trainer) -> None:
    """From the end of the rounds to the model."""
    remember_end(kit)
    making = partial(write_status, kit, "making the model")
    making()
    trainer.ask(Message("end", kit.plan.id), making)
    trainer.close()
    write_status(kit, "done")
    journal("done: the model is in model/" if kit.model.is_dir() else "done, without a model")


def end_with_parent(parent: int) -> None:
    """End this process as soon as its supervisor is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(folder: Path) -> None:
    """Finish what was told to end before."""
    end_with_parent(os.getppid())
    kit = read_kit(folder)
    journal = Journal(kit)
    journal("all rounds are done: going on with the model")
    finish(kit, journal, Trainer(kit, journal))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
