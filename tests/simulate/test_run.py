import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

from factorized_fl.config import Config
from factorized_fl.core.errors import Damaged, UserError
from factorized_fl.results import rundir
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.run import peak_memory, run_federation
from factorized_fl.simulate.scenario import build_scenario_of
from tests.tiny import tiny_config


def contents(directory: Path) -> dict[str, bytes]:
    """The files that must be equal between equal runs."""
    names = ["metrics.jsonl", "summary.json", "config.toml", "clients.json", "checkpoint.safetensors", "analysis.json"]
    names += sorted(str(path.relative_to(directory)) for path in directory.glob("*/round-*"))
    return {name: (directory / name).read_bytes() for name in names}


class StopIn:
    """An observer that interrupts a run in the middle of a round, as Ctrl-C does."""

    def __init__(self, round_number: int) -> None:
        self.round = round_number

    def started(self, federation, done) -> None: ...

    def client_done(self, round_number: int, client: int) -> None:
        if round_number == self.round and client == 1:
            raise KeyboardInterrupt

    def round_done(self, round_number, records) -> None: ...


@pytest.mark.parametrize("method", ["factorized-fl-beta", "fedavg"])
def test_runs_of_one_seed_are_equal_also_if_interrupted(method: str, images: Path, tmp_path: Path) -> None:
    config = tiny_config(method)
    run_federation(config, tmp_path / "a", data=images)
    run_federation(config, tmp_path / "b", data=images)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    with pytest.raises(KeyboardInterrupt):
        run_federation(config, tmp_path / "c", data=images, observers=[StopIn(2)])
    run_federation(config, tmp_path / "c", data=images, resume=True)
    assert contents(tmp_path / "a") == contents(tmp_path / "c")
    run_federation(tiny_config(method, seed=2), tmp_path / "d", data=images)
    assert contents(tmp_path / "a")["metrics.jsonl"] != contents(tmp_path / "d")["metrics.jsonl"]


SLOW = """
import sys, time
from pathlib import Path
from factorized_fl.config import from_table, read_table
from factorized_fl.simulate.run import run_federation

class Slow:
    def started(self, federation, done): pass
    def client_done(self, round_number, client):
        if round_number == 2 and client == 2:
            print("in round 2", flush=True)
            time.sleep(60)
    def round_done(self, round_number, records): pass

run_federation(from_table(read_table(Path(sys.argv[1]))), sys.argv[2], data=Path(sys.argv[3]), observers=[Slow()])
"""


def test_a_run_killed_in_round_2_of_3_and_resumed_equals_an_uninterrupted_run(images: Path, tmp_path: Path) -> None:
    """A process is killed with SIGKILL and the run is resumed by the command line."""
    config = tiny_config("factorized-fl-beta")
    (tmp_path / "config.toml").write_text(config.to_toml())
    run_federation(config, tmp_path / "whole", data=images)
    broken = tmp_path / "broken"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, tmp_path / "config.toml", broken, images], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in round 2\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert RunDirectory(broken).checkpoint_round() == 1
    # A process that is killed while writing can leave these behind:
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "client": 0, "accura')
    (broken / "checkpoint.part").write_bytes(b"half a checkpoint")
    command = [sys.executable, "-m", "factorized_fl.cli", "run", str(tmp_path / "config.toml")]
    finished = subprocess.run(
        [*command, "--out", str(broken), "--data", str(images), "--resume"], capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    assert contents(tmp_path / "whole") == contents(broken)


@pytest.mark.parametrize("files", range(5))
def test_a_run_killed_while_its_first_files_are_written_can_be_resumed(
    files: int, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`files` files are complete and the next one is half written."""
    config = tiny_config("fedavg", rounds=1)
    run_federation(config, tmp_path / "whole", data=images)
    written: list[Path] = []
    write = rundir.write_atomically

    def killed(path: Path, content: bytes) -> None:
        if len(written) == files:
            path.with_name(path.name + ".part").write_bytes(content[:9])
            raise KeyboardInterrupt
        write(path, content)
        written.append(path)

    with monkeypatch.context() as patch:
        patch.setattr(rundir, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            run_federation(config, tmp_path / "broken", data=images)
    assert len(written) == files
    run_federation(config, tmp_path / "broken", data=images, resume=True)
    assert contents(tmp_path / "whole") == contents(tmp_path / "broken")


def test_metrics_hold_one_line_per_round_and_client(images: Path, tmp_path: Path) -> None:
    directory = run_federation(tiny_config(), tmp_path / "run", data=images)
    assert [(r["round"], r["client"]) for r in directory.metrics()] == [(r, k) for r in (1, 2, 3) for k in range(4)]
    assert [record["round"] for record in directory.timing()] == [1, 2, 3]
    assert all(record.keys() == {"round", "seconds"} for record in directory.timing())  # a CPU has no peak
    assert set(directory.mixing(2)) == {"matrix", "similarity"}
    assert directory.mixing(3)["matrix"].shape == (4, 4)
    assert not (tmp_path / "run" / "mixing" / "round-0001.safetensors").exists()
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["seed"] == 1
    assert (environment["engine"], environment["convolutions"]) == (
        "reference",
        "fp32",
    )  # on a CPU, whatever the configuration says
    clients = directory.clients()
    assert [client["domain"] for client in clients] == ["bars", "bars", "lines", "lines"]
    assert sorted(clients[0]["classes"]) == ["bars-0", "bars-1", "bars-2"]
    assert (clients[0]["train"], clients[0]["test"]) == (18, 12)
    summary = directory.summary()
    assert summary is not None
    last = [r["accuracy"] for r in directory.metrics() if r["round"] == 3]
    assert summary["accuracy_mean"] == pytest.approx(sum(last) / 4)
    assert summary["up_bytes"] == sum(r["up_bytes"] for r in directory.metrics())


def test_a_complete_run_is_not_run_again(images: Path, tmp_path: Path) -> None:
    config = tiny_config(rounds=1)
    run_federation(config, tmp_path / "run", data=images)
    before = (tmp_path / "run" / "checkpoint.safetensors").stat().st_mtime_ns
    with pytest.warns(UserWarning, match="was already complete; .* was ignored"):  # it may hold other data
        run_federation(config, tmp_path / "run", data=images, resume=True)
    run_federation(config, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "checkpoint.safetensors").stat().st_mtime_ns == before


def test_a_complete_run_is_recognised_by_its_summary_without_a_checkpoint(images: Path, tmp_path: Path) -> None:
    config = tiny_config(rounds=2)
    run_federation(config, tmp_path / "run", data=images)
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    directory = run_federation(config, tmp_path / "run", resume=True)
    assert directory.summary() is not None
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    with pytest.raises(UserError, match="rounds was 2, now 3"):
        run_federation(tiny_config(rounds=3), tmp_path / "run", data=images, resume=True)


def test_a_run_without_summary_and_checkpoint_begins_again(images: Path, tmp_path: Path) -> None:
    config = tiny_config()
    run_federation(config, tmp_path / "whole", data=images)
    with pytest.raises(KeyboardInterrupt):
        run_federation(config, tmp_path / "run", data=images, observers=[StopIn(3)])
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    run_federation(config, tmp_path / "run", data=images, resume=True)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@pytest.mark.parametrize("method", ["factorized-fl-beta", "clustered-fl"])
def test_a_checkpoint_without_trained_and_updated_is_resumed(method: str, images: Path, tmp_path: Path) -> None:
    """Checkpoints of early versions hold neither; in a simulation they follow from what the server received."""
    config = tiny_config(method, rounds=4, fraction=0.5, dropout=0.3)
    run_federation(config, tmp_path / "whole", data=images)
    with pytest.raises(KeyboardInterrupt):
        run_federation(config, tmp_path / "run", data=images, observers=[StopIn(3)])
    directory = RunDirectory(tmp_path / "run")
    tensors = directory.load_checkpoint()
    assert 0 < tensors["received"].sum() < 4
    early = {name: tensor for name, tensor in tensors.items() if name not in ("trained", "updated")}
    directory.save_checkpoint(directory.checkpoint_round(), early)
    run_federation(config, tmp_path / "run", data=images, resume=True)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_peak_memory_of_a_gpu_is_in_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**29)
    assert peak_memory(torch.device("cuda")) == {"peak_gib": 1.5}
    assert peak_memory(torch.device("cpu")) == {}


def test_an_existing_run_is_never_overwritten(images: Path, tmp_path: Path) -> None:
    run_federation(tiny_config(rounds=1), tmp_path / "run", data=images)
    before = contents(tmp_path / "run")
    with pytest.raises(UserError, match="add resume=True"):
        run_federation(tiny_config(rounds=1), tmp_path / "run", data=images)
    with pytest.raises(UserError, match=r"rounds was 1, now 2.*tau was 0.5, now 0.25"):
        run_federation(tiny_config(rounds=2, options={"tau": 0.25}), tmp_path / "run", data=images, resume=True)
    assert contents(tmp_path / "run") == before


def test_a_folder_of_other_files_a_file_and_a_damaged_checkpoint_are_refused(images: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="not empty"):
        run_federation(tiny_config(), tmp_path / "full", data=images)
    (tmp_path / "file").write_text("precious")
    with pytest.raises(UserError, match="is a file"):
        run_federation(tiny_config(), tmp_path / "file", data=images)
    run_federation(tiny_config(rounds=1), tmp_path / "run", data=images)
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(UserError, match=r"damaged.*remove it, and summary\.json"):
        run_federation(tiny_config(rounds=1), tmp_path / "run", data=images, resume=True)
    for name in ("checkpoint.safetensors", "summary.json"):
        (tmp_path / "run" / name).unlink()
    run_federation(tiny_config(rounds=1), tmp_path / "run", data=images, resume=True)
    assert RunDirectory(tmp_path / "run").checkpoint_round() == 1


def test_a_failed_start_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        run_federation(tiny_config(), tmp_path / "runs" / "new", data=tmp_path / "nowhere")
    assert not (tmp_path / "runs" / "new").exists()


def test_a_failed_start_keeps_a_folder_that_existed_before(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError):
        run_federation(tiny_config(), tmp_path / "mine", data=tmp_path / "nowhere")
    assert (tmp_path / "mine").is_dir()


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("metrics.jsonl", lambda content: content[:-20], "does not hold all rounds up to 2"),
        ("metrics.jsonl", lambda content: b"", "does not hold all rounds up to 2"),
        ("metrics.jsonl", lambda content: content.split(b"\n", 1)[1], "does not hold all rounds up to 2"),
        ("metrics.jsonl", lambda content: b"[]\n" + content, "line 1, is damaged"),
        ("metrics.jsonl", lambda content: b"\xff\n" + content, "line 1, is damaged"),
        ("timing.jsonl", lambda content: content + b"{}\n", "line 3, is damaged"),
    ],
)
def test_a_run_with_lost_or_damaged_lines_is_not_resumed(
    name: str, damage, words: str, images: Path, tmp_path: Path
) -> None:
    directory = run_federation(tiny_config(rounds=2), tmp_path / "run", data=images)
    (directory.path / "summary.json").unlink()
    file = directory.path / name
    file.write_bytes(damage(file.read_bytes()))
    before = file.read_bytes()
    with pytest.raises(UserError, match=words):
        run_federation(tiny_config(rounds=2), directory.path, data=images, resume=True)
    assert file.read_bytes() == before
    directory.checkpoint_path.unlink()  # as the message advises
    run_federation(tiny_config(rounds=2), directory.path, data=images, resume=True)
    assert len(directory.metrics()) == 2 * 4


def test_a_damaged_summary_an_unknown_file_and_the_checkpoint_of_another_method(images: Path, tmp_path: Path) -> None:
    directory = run_federation(tiny_config("fedavg", rounds=2), tmp_path / "run", data=images)
    whole = contents(directory.path)
    for damaged in ("{", "[1]", "{}"):
        (directory.path / "summary.json").write_text(damaged)
        with pytest.raises(UserError, match=r"summary.json' is damaged .* remove it"):
            directory.summary()
    (directory.path / "summary.json").unlink()
    (directory.path / "mixing" / "round-x.safetensors").write_bytes(b"")
    run_federation(tiny_config("fedavg", rounds=2), directory.path, data=images, resume=True)
    (directory.path / "mixing" / "round-x.safetensors").unlink()
    assert contents(directory.path) == whole
    other = run_federation(tiny_config("factorized-fl", rounds=2), tmp_path / "other", data=images)
    (other.path / "summary.json").unlink()
    other.checkpoint_path.write_bytes(directory.checkpoint_path.read_bytes())
    with pytest.raises(UserError, match="is damaged"):
        run_federation(tiny_config("factorized-fl", rounds=2), other.path, data=images, resume=True)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("unable to mmap 9 bytes: Cannot allocate memory (12)"), "too little memory to load"),
        (MemoryError(), "too little memory to load"),
        (SafetensorError("header too large"), "is damaged"),
    ],
)
def test_a_checkpoint_that_memory_cannot_hold_is_not_called_damaged(
    error: Exception, words: str, tmp_path: Path
) -> None:
    """A user would remove a checkpoint that is called damaged."""
    directory = RunDirectory(tmp_path)
    directory.checkpoint_path.write_bytes(b"anything")
    with pytest.raises(UserError, match=words) as found, directory.reading_checkpoint():
        raise error
    assert isinstance(found.value, Damaged) == ("damaged" in words)


def test_a_checkpoint_without_read_permission_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may run as root
    directory = RunDirectory(tmp_path)
    with (
        pytest.raises(UserError, match=r"Permission denied reading .* no data was lost"),
        directory.reading_checkpoint(),
    ):
        raise FileNotFoundError


@pytest.mark.parametrize("changes", [{"permuted": 1}, {"seed": 1.0}, {"rounds": np.int64(2)}])
def test_settings_that_toml_does_not_keep_are_refused_before_training(changes: dict, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="written down and read again"):
        run_federation(replace(tiny_config(), **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_is_resumed_only_with_its_own_data(images: Path, tmp_path: Path) -> None:
    """Without this check a run would train on other classes or another split without a message."""
    directory = run_federation(tiny_config(rounds=2), tmp_path / "run", data=images)
    (directory.path / "summary.json").unlink()
    clients = directory.clients()
    file = directory.path / "clients.json"
    for change, words in (
        ({"classes": ["a", "b"]}, "classes was"),
        ({"train": 3}, "train was 3, now"),
        ({"split": "0"}, "the split is different"),
        ({"images": "0"}, "the images are different"),
    ):
        file.write_text(json.dumps([clients[0] | change, *clients[1:]]))
        with pytest.raises(UserError, match=f"started with other data .*{words}.* give it the same data"):
            run_federation(tiny_config(rounds=2), directory.path, data=images, resume=True)
    file.write_text(json.dumps(clients[1:]))
    with pytest.raises(UserError, match="it had 3 clients, now there are 4"):
        run_federation(tiny_config(rounds=2), directory.path, data=images, resume=True)
    for damaged in ("[", "[1, 2, 3]", "{}"):
        file.write_text(damaged)
        with pytest.raises(UserError, match=r"clients.json' is damaged"):
            run_federation(tiny_config(rounds=2), directory.path, data=images, resume=True)
    older = [{name: value for name, value in client.items() if name != "split"} for client in clients]
    file.write_text(json.dumps(older))  # written by a version without this mark
    run_federation(tiny_config(rounds=2), directory.path, data=images, resume=True)


def test_two_processes_cannot_share_a_directory(tmp_path: Path) -> None:
    with (
        RunDirectory(tmp_path / "run").lock(),
        pytest.raises(UserError, match="Another process"),
        RunDirectory(tmp_path / "run").lock(),
    ):
        pass


def test_a_full_disk_gives_one_sentence_and_keeps_the_old_checkpoint(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Config = tiny_config()
    with pytest.raises(KeyboardInterrupt):
        run_federation(config, tmp_path / "run", data=images, observers=[StopIn(3)])
    before = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()

    def full(tensors, path, metadata) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rundir.safetensors.torch, "save_file", full)
    with pytest.raises(UserError, match="free some space"):
        run_federation(config, tmp_path / "run", data=images, resume=True)
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == before
    assert not (tmp_path / "run" / "checkpoint.part").exists()
    monkeypatch.undo()
    os.environ["FFL_CACHE"] = str(tmp_path / "cache")
    run_federation(config, tmp_path / "run", data=images, resume=True)
    run_federation(config, tmp_path / "whole", data=images)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_checkpoint_holds_no_pickle(images: Path, tmp_path: Path) -> None:
    directory = run_federation(tiny_config(rounds=1), tmp_path / "run", data=images)
    tensors = safetensors.torch.load_file(directory.checkpoint_path)
    assert {name.split("/")[0] for name in tensors} == {
        *("state", "momentum", "trained"),  # of the clients
        *("received", "updated"),  # of the server
        "metrics_size",
    }
    suffixes = {path.suffix for path in directory.path.rglob("*") if path.is_file()}
    assert suffixes <= {".toml", ".json", ".jsonl", ".safetensors"}


@pytest.mark.parametrize(("share", "written"), [(1e9, [1, 2, 3]), (0.0, [1, 1, 3])])
def test_checkpoints_that_take_too_long_are_skipped(
    share: float, written: list[int], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first, whose duration is not known before, and the last are always written."""
    monkeypatch.setattr("factorized_fl.simulate.run._CHECKPOINT_SHARE", share)
    seen = []

    class Look(StopIn):
        def round_done(self, round_number, records) -> None:
            seen.append(RunDirectory(tmp_path / "run").checkpoint_round())

    run_federation(tiny_config(), tmp_path / "run", data=images, observers=[Look(0)])
    assert seen == written


def test_the_partition_can_have_a_seed_of_its_own(images: Path) -> None:
    first, second = (tiny_config("fedavg", partition="dirichlet", seed=seed) for seed in (1, 2))
    both = tiny_config("fedavg", partition="dirichlet", seed=1, partition_seed=2)
    one, two, mixed = (build_scenario_of(config, images) for config in (first, second, both))
    held = [[client.train.tolist() for client in scenario.clients] for scenario in (one, two, mixed)]
    assert held[2] == held[1] != held[0]
    began = [
        build_federation(config, two, torch.device("cpu")).clients.state.common for config in (first, second, both)
    ]
    assert all(torch.equal(began[2][name], began[0][name]) for name in began[0])
    assert not all(torch.equal(began[2][name], began[1][name]) for name in began[1])
