"""A trainer that stands still is ended and another takes its place."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from factorized_fl.silo import keeper
from factorized_fl.silo.journal import Journal, last_lines
from factorized_fl.silo.keeper import Trainer
from factorized_fl.silo.messages import Message
from tests.silo.parties import kits_of, trio_config

# In place of the trainer: signs of life and an answer to everything, or silence if a file exists.
PROGRAM = """
import sys, threading, time
from pathlib import Path
from factorized_fl.silo.messages import Message
from factorized_fl.silo.trainer import ALIVE, read_frame, write_frame
write_frame(sys.stdout.buffer, Message("hello", "f" * 16))
while (request := read_frame(sys.stdin.buffer, "f" * 16)) is not None:
    for _ in range(4):
        write_frame(sys.stdout.buffer, Message(ALIVE, "f" * 16))
        time.sleep(0.1)
    write_frame(sys.stdout.buffer, Message("answer", "f" * 16, {"pid": __import__("os").getpid()}))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs POSIX signals")
def test_a_stopped_trainer_is_replaced_and_the_request_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = kits_of(tmp_path, trio_config())["aster"]
    trainer = Trainer(kit, Journal(kit))
    start = subprocess.Popen
    monkeypatch.setattr(
        keeper.subprocess, "Popen", lambda command, **options: start([sys.executable, "-c", PROGRAM], **options)
    )
    monkeypatch.setattr(keeper, "HUNG", 1.0)
    monkeypatch.setattr(keeper, "_ALIVE", 0.2)
    trainer.hello()
    first = trainer.process
    assert first is not None
    os.kill(first.pid, signal.SIGSTOP)
    answer = trainer.ask(Message("round", "f" * 16, {"request": "round-1"}), lambda: None)
    assert first.wait() == -signal.SIGKILL
    assert answer.fields["pid"] != first.pid
    assert any("no sign of life for 1 s: ending it" in line for line in last_lines(kit))
    assert trainer.ask(Message("round", "f" * 16), lambda: None).fields == answer.fields  # signs of life keep it
    trainer.close()
