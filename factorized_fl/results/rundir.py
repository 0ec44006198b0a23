"""The run directory: all that a run leaves behind, and all that resuming or reporting needs.

config.toml            the complete configuration
environment.json       versions, machine, commit
clients.json           who takes part, with which classes and how many images; marks of the split and of the images
metrics.jsonl          one line per round and client, append-only
timing.jsonl           one line per round: seconds, on a GPU peak_gib (apart, because metrics of equal runs are equal)
mixing/round-N.safetensors   mixing and similarity matrices of round N
traces/round-N.safetensors   similarity of u and v, sparsity of mu after round N, for methods that have them
checkpoint.safetensors       everything needed to go on
analysis.json          confusion matrices and sizes of factors, written at the end
summary.json           written when the run is complete
report.html            the page, which reads all of the above
"""

import fcntl
import hashlib
import json
import os
import shutil
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from factorized_fl.config import Config, read_config
from factorized_fl.core.errors import Busy, Damaged, UserError, is_lack_of_memory
from factorized_fl.core.files import PART, plain_errors, write_atomically
from factorized_fl.core.mixing import dense, weights_from
from factorized_fl.core.views import Mixing
from factorized_fl.data.scenarios import Scenario

Record = dict[str, Any]
_CONFIG = "config.toml"
_LARGEST_STATE = 100_000  # entries of a tensor of a method's memory that is kept for the report
_MARKS = {"split": "the split is another", "images": "the images are others"}  # what a mark that changed means
_RESTORE = "restore the file, or remove the checkpoint, and summary.json if there is one, to start this run again."


class RunDirectory:
    """Reading and writing of one run's files."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.checkpoint_path = self.path / "checkpoint.safetensors"
        self.previous_path = self.path / "previous.safetensors"  # of who keeps two

    # -- beginning and resuming

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time; the lock goes with the process, however it ends. A failed start leaves no folder."""
        ours = not self.path.exists()
        if not ours and not self.path.is_dir():
            raise UserError(f"'{self.path}' is a file: choose another --out.")
        with plain_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise Busy(f"Another process is at work in '{self.path}': wait for it, or choose another --out.") from None
        try:
            yield
        finally:
            if ours and not any(self.path.iterdir()):
                self.path.rmdir()
            os.close(handle)

    def rounds_done(self, config: Config, resume: bool) -> int:
        """The last round that is safely on disk (0: none); refuses what would spoil somebody's results."""
        if not (self.path / _CONFIG).exists():
            if any(found.name != f"{_CONFIG}{PART}" for found in self.path.iterdir()):
                raise UserError(f"'{self.path}' is not empty and not a run: choose another --out.")
            return 0
        if not resume:
            raise UserError(f"'{self.path}' already holds a run: add --resume to continue it, or choose another --out.")
        self._refuse_other(config)
        return self.checkpoint_round()

    def begin(
        self,
        config: Config,
        environment: Mapping[str, Any],
        clients: Sequence[Record],
        done: int,
        metrics_size: int | None = None,
    ) -> None:
        """Write what a run begins with, or drop what a killed process wrote after its last checkpoint.

        `metrics_size` is the size of metrics.jsonl at that checkpoint, where it is known: lost lines are refused.
        """
        if done == 0:
            # First, for it marks a run: who is killed after it can resume.
            write_atomically(self.path / _CONFIG, config.to_toml().encode())
            write_atomically(self.path / "environment.json", json.dumps(environment, indent=2).encode())
            write_atomically(self.path / "clients.json", json.dumps(clients, indent=2).encode())
        with plain_errors(self.path):
            (self.path / "mixing").mkdir(exist_ok=True)
        self._forget_after(done, metrics_size)

    def refuse_other_data(self, clients: Sequence[Record]) -> None:
        """Refuse classes or a split other than those that rounds were trained with, as far as the run tells."""
        if not self.checkpoint_path.exists():
            return
        before = self.clients() or clients
        if len(before) != len(clients):
            raise self._other_data(f"{len(before)} clients were in it, now {len(clients)} are")
        for old, new in zip(before, clients, strict=True):
            for name in old:
                if name in new and old[name] != new[name]:
                    change = f"{name} was {old[name]}, now {new[name]}"
                    raise self._other_data(f"of {old['name']}, {_MARKS.get(name, change)}")

    def _other_data(self, what: str) -> UserError:
        return UserError(f"'{self.path}' was begun with other data ({what}): give it the same, with --data.")

    def _refuse_other(self, config: Config) -> None:
        # Options that came after the run was begun have their defaults in it.
        old, new = (tomllib.loads(found.to_toml()) for found in (self.config(), config))
        old |= old.pop("options", {})
        new |= new.pop("options", {})
        changed = [
            f"{name} was {old.get(name)!r}, now {new.get(name)!r}"
            for name in {**old, **new}
            if old.get(name) != new.get(name)
        ]
        if changed:
            raise UserError(
                f"'{self.path}' was begun with another configuration ({'; '.join(changed)}): "
                "use the same one, or another --out."
            )

    def _forget_after(self, round: int, metrics_size: int | None) -> None:
        """Drop later rounds; they will be written again, the same."""
        kept = dict.fromkeys(("metrics.jsonl", "timing.jsonl"), b"")
        if round:
            for name in kept:
                lines = (_line(record) for record in self._records(name) if record["round"] <= round)
                kept[name] = "".join(lines).encode()
        if metrics_size not in (None, len(kept["metrics.jsonl"])):
            raise UserError(f"'{self.path / 'metrics.jsonl'}' does not hold all rounds up to {round}: {_RESTORE}")
        for name, content in kept.items():
            write_atomically(self.path / name, content)
        for kind in ("mixing", "traces"):
            for later in [found for found in self._rounds(kind) if found > round]:
                self._round_file(kind, later).unlink(missing_ok=True)

    # -- writing

    def append(self, name: str, records: Iterable[Record]) -> None:
        """Add lines to metrics.jsonl or timing.jsonl and make sure they are on disk."""
        with plain_errors(self.path), (self.path / name).open("a", encoding="utf-8") as file:
            file.write("".join(_line(record) for record in records))
            file.flush()
            os.fsync(file.fileno())

    def save_mixing(self, round: int, mixing: Mixing) -> None:
        """Keep the round's matrices and what the method remembers of it."""
        tensors = mixing.weights.tensors()
        tensors |= {f"state.{name}": t for name, t in mixing.state.items() if t.numel() <= _LARGEST_STATE}
        for name, tensor in (("similarity", mixing.similarity), ("revert", mixing.revert)):
            if tensor is not None:
                tensors[name] = tensor
        path = self._round_file("mixing", round)
        # A method may answer with one tensor twice, or with views.
        apart = {name: t.cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
        write_atomically(path, safetensors.torch.save(apart))

    def save_trace(self, round: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Keep what there is to see of the factors."""
        if tensors:
            with plain_errors(self.path):
                (self.path / "traces").mkdir(exist_ok=True)
            write_atomically(self._round_file("traces", round), safetensors.torch.save(dict(tensors)))

    def save_checkpoint(self, round: int, tensors: Mapping[str, torch.Tensor], **tags: str) -> None:
        """Replace the checkpoint. Tensors are streamed to disk: no second copy of the state is made."""
        temporary = self.checkpoint_path.with_suffix(PART)
        with plain_errors(self.path):
            temporary.unlink(missing_ok=True)
            try:
                safetensors.torch.save_file(dict(tensors), temporary, metadata={"round": str(round), **tags})
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                os.replace(temporary, self.checkpoint_path)
            except (OSError, SafetensorError):
                temporary.unlink(missing_ok=True)
                raise

    def keep_previous(self) -> None:
        """Before a new checkpoint is saved: keep the one that it replaces, too."""
        if not self.checkpoint_path.exists():
            return
        with plain_errors(self.path):
            self.previous_path.unlink(missing_ok=True)
            try:
                os.link(self.checkpoint_path, self.previous_path)
            except OSError:  # a file system without links
                shutil.copy(self.checkpoint_path, self.previous_path)

    def metrics_size(self) -> int:
        """Bytes of metrics.jsonl: who remembers them can tell whether lines were lost."""
        return (self.path / "metrics.jsonl").stat().st_size

    def save_analysis(self, analysis: Mapping[str, Any]) -> None:
        """Keep what was looked at once, at the end."""
        write_atomically(self.path / "analysis.json", json.dumps(analysis).encode())

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        """Mark the run complete."""
        write_atomically(self.path / "summary.json", json.dumps(summary, indent=2).encode())

    # -- reading

    def checkpoint_round(self) -> int:
        """The round of the checkpoint, 0 if there is none."""
        if not self.checkpoint_path.exists():
            return 0
        with self.reading_checkpoint(), safe_open(self.checkpoint_path, "pt") as file:
            return int(file.metadata()["round"])

    def load_checkpoint(self) -> dict[str, torch.Tensor]:
        """All tensors of the checkpoint."""
        with self.reading_checkpoint():
            return safetensors.torch.load_file(self.checkpoint_path)

    @contextmanager
    def reading_checkpoint(self) -> Iterator[None]:
        """Turn what a damaged checkpoint, or another run's, leads to into one sentence; one may be whole but closed."""
        path = self.checkpoint_path
        try:
            yield
        except (OSError, MemoryError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
            if not os.access(path, os.R_OK):
                raise UserError(f"'{path}' cannot be read: allow it, and nothing is lost.") from None
            if is_lack_of_memory(error):
                raise UserError(
                    f"There is too little memory to load '{path}': free some, and nothing is lost."
                ) from None
            raise Damaged(
                f"The checkpoint '{path}' is damaged ({error}): "
                "remove it, and summary.json if there is one, to start this run again."
            ) from None

    def config(self) -> Config:
        """The run's configuration."""
        return read_config(self.path / _CONFIG)

    def clients(self) -> list[Record]:
        """Who takes part, in order; nobody if nothing says so."""
        return self._read("clients.json", _is_list_of_clients, _RESTORE) or []

    def metrics(self) -> list[Record]:
        """All lines of metrics.jsonl."""
        return list(self._records("metrics.jsonl"))

    def rounds_trained(self, client: int, rounds: int) -> int:
        """In how many of so many rounds a client trained."""
        return sum(r["client"] == client and r["round"] <= rounds and r["steps"] > 0 for r in self.metrics())

    def timing(self) -> list[Record]:
        """All lines of timing.jsonl."""
        return list(self._records("timing.jsonl"))

    def mixed_rounds(self) -> list[int]:
        """The rounds that began with a mixing, in order."""
        return self._rounds("mixing")

    def mixing(self, round: int) -> dict[str, torch.Tensor]:
        """Of a round `matrix`; where the method has them `similarity`, `revert`, and `state.*` what it remembered."""
        tensors = safetensors.torch.load_file(self._round_file("mixing", round))
        if "matrix" not in tensors:
            tensors["matrix"] = dense(weights_from(tensors))
        return tensors

    def traces(self) -> dict[int, dict[str, torch.Tensor]]:
        """By round what was kept of the factors: `cosine.u`, `cosine.v`, `mu`; nothing if there are none."""
        return {
            round: safetensors.torch.load_file(self._round_file("traces", round)) for round in self._rounds("traces")
        }

    def _rounds(self, kind: str) -> list[int]:
        found = (path.stem.removeprefix("round-") for path in (self.path / kind).glob("round-*.safetensors"))
        return sorted(int(number) for number in found if number.isdecimal())

    def _round_file(self, kind: str, round: int) -> Path:
        return self.path / kind / f"round-{round:04d}.safetensors"

    def analysis(self) -> Record:
        """What a complete run's analysis found."""
        return json.loads((self.path / "analysis.json").read_text(encoding="utf-8"))

    def summary(self) -> Record | None:
        """The summary, if the run is complete."""
        again = "remove it, then --resume writes it again."
        return self._read("summary.json", _is_summary, again)

    def _read(self, name: str, fits: Callable[[Any], bool], advice: str) -> Any:
        """The content of a JSON file that lists clients; nothing if there is none."""
        path = self.path / name
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if not fits(found):
                raise ValueError("it lists no clients")
        except ValueError as error:
            raise UserError(f"'{path}' is damaged ({error}): {advice}") from None
        return found

    def _records(self, name: str) -> Iterator[Record]:
        """Whole lines only: a torn last line is what a killed process leaves."""
        path = self.path / name
        if not path.exists():
            return
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield _record(line, f"'{path}', line {number},")


def _is_list_of_clients(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(who, dict) and "name" in who for who in found)


def _is_summary(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("clients"), list)


def _line(record: Record) -> str:
    return json.dumps(record) + "\n"


def _record(line: bytes, where: str) -> Record:
    try:
        record = json.loads(line)
        if isinstance(record["round"], int):
            return record
    except (ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{where} is damaged: {_RESTORE}")


def describe_clients(scenario: Scenario) -> list[Record]:
    """Who takes part, for clients.json, with two marks to tell other data by.

    `split` changes with which images are for what, under which labels; `images` with the pixels and labels of all that
    the client has, whatever they are for, so it is the same for methods that divide them differently.
    """
    pixels = torch.tensor([zlib.crc32(image) for image in scenario.images.numpy()])
    described = []
    for client in scenario.clients:
        parts = {part: getattr(client, part) for part in ("train", "validation", "test", "holdout")}
        everything = torch.cat(list(parts.values())).unique()
        described.append(
            {
                "name": client.name,
                "domain": client.domain,
                "classes": list(client.classes),
                **{part: len(positions) for part, positions in parts.items()},
                "split": _mark(
                    numbers
                    for positions in parts.values()
                    for numbers in (positions, client.labelling[scenario.labels[positions]])
                ),
                "images": _mark((pixels[everything], client.labelling[scenario.labels[everything]])),
            }
        )
    return described


def _mark(several: Iterable[torch.Tensor]) -> str:
    """Whole numbers as sixteen hexadecimal figures."""
    mark = hashlib.blake2b(digest_size=8)
    for numbers in several:
        mark.update(numbers.to(torch.int64).contiguous().numpy().tobytes())
    return mark.hexdigest()
