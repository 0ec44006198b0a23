"""Run directories as the program writes them: locking, resuming, writing. schema.py lists their files."""

import hashlib
import json
import os
import shutil
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import safetensors.torch
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open

from factorized_fl.config import Config, from_table
from factorized_fl.core.errors import Busy, Damaged, UserError, is_lack_of_memory
from factorized_fl.core.files import PART, plain_errors, write_atomically
from factorized_fl.core.views import Evaluated, Mixing
from factorized_fl.data.scenarios import Scenario
from factorized_fl.results import schema
from factorized_fl.results.reading import RESTORE, RunReader, load_round, recorded_rounds, round_file
from factorized_fl.results.right import save_graded
from factorized_fl.results.schema import Record

__all__ = ["Record", "RunDirectory", "describe_clients"]

_MARKS = {
    "split": "the split is different",
    "images": "the images are different",
    "model": "the model is different",
}  # the meaning of a changed mark


class RunDirectory(RunReader):
    """Writes one run's files, and reads them strictly."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path, strict=True)
        self.checkpoint_path = self.path / schema.CHECKPOINT
        self.previous_path = self.path / schema.PREVIOUS  # of parties that keep two checkpoints

    # -- starting and resuming

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out while the context lasts; raise Busy if one is at work here."""
        created = not self.path.exists()
        if not created and not self.path.is_dir():
            raise UserError(f"'{self.path}' is a file: choose another --out.")
        file = self.path / schema.LOCK
        lock = FileLock(file, timeout=0)
        with plain_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
            except Timeout:
                message = f"Another process is at work in '{self.path}': wait for it, or choose another --out."
                raise Busy(message) from None
            except OSError:
                if not (self.path / schema.SUMMARY).is_file():  # a complete run may be read-only
                    raise
        try:
            yield
        finally:
            # While the lock is held, so that a waiting process does not lose the file it has just locked. Windows
            # does not remove open files; there an empty file remains, which everything else here ignores.
            if lock.is_locked:
                with suppress(OSError):
                    file.unlink()
            lock.release()
            if created:
                with suppress(OSError):  # it is not empty
                    self.path.rmdir()

    def rounds_done(self, config: Config, resume: bool) -> int:
        """Return the last round in the checkpoint, or 0; raise UserError for a folder that `config` cannot continue."""
        if not (self.path / schema.CONFIG).exists():
            leftovers = (f"{schema.CONFIG}{PART}", schema.LOCK)  # of a process that was killed
            if any(found.name not in leftovers for found in self.path.iterdir()):
                raise UserError(f"'{self.path}' is not empty and not a run: choose another --out.")
            return 0
        if not resume:
            raise UserError(f"'{self.path}' already holds a run: add --resume to continue it, or choose another --out.")
        # Reading a configuration fills in the defaults of options that are newer than the run.
        old, new = (tomllib.loads(found.to_toml()) for found in (self.config(), config))
        old |= old.pop("options", {})
        new |= new.pop("options", {})
        names = [name for name in {**old, **new} if old.get(name) != new.get(name) and name != "profile"]
        if changed := "; ".join(f"{name} was {old.get(name)!r}, now {new.get(name)!r}" for name in names):
            raise UserError(
                f"'{self.path}' was started with another configuration ({changed}): use the same one, or another --out."
            )
        return self.checkpoint_round()

    def begin(
        self, config: Config, environment: Record, clients: Sequence[Record], done: int, metrics_size: int | None = None
    ) -> None:
        """Write a run's first files, or drop all after the checkpoint; raise UserError if metrics.jsonl lost lines."""
        if done == 0:
            # The configuration comes first: it marks a run, so that a process killed after it can resume.
            write_atomically(self.path / schema.CONFIG, config.to_toml().encode())
            write_atomically(self.path / schema.ENVIRONMENT, json.dumps(environment, indent=2).encode())
            write_atomically(self.path / schema.CLIENTS, json.dumps(clients, indent=2).encode())
        with plain_errors(self.path):
            (self.path / schema.MIXING).mkdir(exist_ok=True)
        # Later rounds are computed again, with the same results.
        kept = dict.fromkeys((schema.METRICS, schema.TIMING), b"")
        if done:
            for name in kept:
                records = self._lines(name, "")  # unchanged, because the checkpoint holds their size
                kept[name] = "".join(_line(record) for record in records if record["round"] <= done).encode()
        # Its size at the checkpoint, if that is known.
        if metrics_size not in (None, len(kept[schema.METRICS])):
            missing = f"does not hold all rounds up to {done}"
            raise UserError(f"'{self.path / schema.METRICS}' {missing}: {RESTORE}")
        for name, content in kept.items():
            write_atomically(self.path / name, content)
        for folder in (schema.MIXING, schema.TRACES):
            for later in [found for found in recorded_rounds(self.path, folder) if found > done]:
                round_file(self.path, folder, later).unlink(missing_ok=True)

    def refuse_other_data(self, clients: Sequence[Record]) -> None:
        """Raise UserError if a checkpoint was trained with other clients, classes, splits or images than these."""
        if not self.checkpoint_path.exists():
            return
        before = self.clients() or clients
        changes = [f"it had {len(before)} clients, now there are {len(clients)}"] if len(before) != len(clients) else []
        changes += [
            f"of {old['name']}, {_MARKS.get(name, f'{name} was {old[name]}, now {new[name]}')}"
            for old, new in zip(before, clients, strict=False)
            for name in old
            if name in new and old[name] != new[name]
        ]
        if changes:
            raise UserError(f"'{self.path}' was started with other data ({changes[0]}): give it the same data.")

    # -- writing

    def append(self, name: str, records: Iterable[Record]) -> None:
        """Add lines to metrics.jsonl or timing.jsonl and make sure they are on disk."""
        with plain_errors(self.path), (self.path / name).open("a", encoding="utf-8") as file:
            file.write("".join(_line(schema.numbered_from_1(record)) for record in records))
            file.flush()
            os.fsync(file.fileno())

    def save_mixing(self, round_number: int, mixing: Mixing) -> None:
        """Write the round's matrices and the state that the method keeps of it."""
        tensors = mixing.weights.tensors()
        tensors |= {f"state.{n}": t for n, t in mixing.state.items() if t.numel() <= schema.LARGEST_STATE}
        further = {"similarity": mixing.similarity, "revert": mixing.revert, "influence": mixing.influence}
        tensors |= {name: tensor for name, tensor in further.items() if tensor is not None}
        # A method may return the same tensor twice, or views.
        apart = {name: t.cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
        write_atomically(round_file(self.path, schema.MIXING, round_number), safetensors.torch.save(apart))

    def save_trace(self, round_number: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write the measurements of the factors after a round, if there are any."""
        if tensors:
            with plain_errors(self.path):
                (self.path / schema.TRACES).mkdir(exist_ok=True)
            write_atomically(round_file(self.path, schema.TRACES, round_number), safetensors.torch.save(dict(tensors)))

    def save_checkpoint(self, round_number: int, tensors: Mapping[str, torch.Tensor], **tags: str) -> None:
        """Replace the checkpoint. Tensors are streamed to disk: no second copy of the state is made."""
        temporary = self.checkpoint_path.with_suffix(PART)
        with plain_errors(self.path):
            temporary.unlink(missing_ok=True)
            try:
                safetensors.torch.save_file(dict(tensors), temporary, metadata={"round": str(round_number), **tags})
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                os.replace(temporary, self.checkpoint_path)
            except (OSError, SafetensorError):
                temporary.unlink(missing_ok=True)
                raise

    def keep_previous(self) -> None:
        """Keep the checkpoint as the previous one; called before a new one is saved."""
        if not self.checkpoint_path.exists():
            return
        with plain_errors(self.path):
            self.previous_path.unlink(missing_ok=True)
            try:
                os.link(self.checkpoint_path, self.previous_path)
            except OSError:  # a file system without links
                shutil.copy(self.checkpoint_path, self.previous_path)

    def metrics_size(self) -> int:
        """Return the size of metrics.jsonl in bytes; stored in the checkpoint to detect truncation."""
        return (self.path / schema.METRICS).stat().st_size

    def save_graded(self, scenario: Scenario, results: Mapping[int, Evaluated]) -> None:
        """Write right.safetensors from the test results of clients, counted from 0."""
        save_graded(self.path / schema.RIGHT, scenario, results)

    def save_analysis(self, analysis: Mapping[str, object]) -> None:
        """Write analysis.json."""
        write_atomically(self.path / schema.ANALYSIS, json.dumps(analysis).encode())

    def save_summary(self, summary: Mapping[str, object]) -> None:
        """Write summary.json, which marks the run as complete."""
        clients = summary["clients"]
        assert isinstance(clients, list)
        content = {**summary, "clients": [schema.numbered_from_1(client) for client in clients]}
        write_atomically(self.path / schema.SUMMARY, json.dumps(content, indent=2).encode())

    # -- reading

    def checkpoint_round(self) -> int:
        """Return the round of the checkpoint, 0 if there is none."""
        if not self.checkpoint_path.exists():
            return 0
        with self.reading_checkpoint(), safe_open(self.checkpoint_path, "pt") as file:
            return int(file.metadata()["round"])

    def load_checkpoint(self) -> dict[str, torch.Tensor]:
        """Return all tensors of the checkpoint."""
        with self.reading_checkpoint():
            return safetensors.torch.load_file(self.checkpoint_path)

    @contextmanager
    def reading_checkpoint(self) -> Iterator[None]:
        """Raise UserError for any failure to read the checkpoint; it is Damaged only if the file itself is at fault."""
        path = self.checkpoint_path
        try:
            yield
        except (OSError, MemoryError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
            if not os.access(path, os.R_OK):
                raise UserError(f"Permission denied reading '{path}'. Fix the permissions; no data was lost.") from None
            if is_lack_of_memory(error):
                lack = f"There is too little memory to load '{path}'. Free some memory; no data was lost."
                raise UserError(lack) from None
            advice = "remove it, and summary.json if there is one, to start this run again."
            raise Damaged(f"The checkpoint '{path}' is damaged ({error}): {advice}") from None

    def config(self) -> Config:
        """Return the run's configuration."""
        return from_table(self.config_table())

    def rounds_trained(self, client: int, rounds: int) -> int:
        """Return in how many of the first `rounds` rounds a client trained."""
        return sum(r["client"] == client and r["round"] <= rounds and r["steps"] > 0 for r in self.metrics())

    def mixed_rounds(self) -> list[int]:
        """Return the rounds that began with an aggregation, in order."""
        return recorded_rounds(self.path, schema.MIXING)

    def mixing(self, round_number: int) -> dict[str, torch.Tensor]:
        """Return `matrix` of a round and, where the method has them, `similarity`, `revert` and its `state.*`."""
        return load_round(round_file(self.path, schema.MIXING, round_number))

    def traces(self) -> dict[int, dict[str, torch.Tensor]]:
        """Return the measurements of the factors by round: `cosine.u`, `cosine.v`, `mu`; empty if there are none."""
        return {
            found: load_round(round_file(self.path, schema.TRACES, found))
            for found in recorded_rounds(self.path, schema.TRACES)
        }


def _line(record: Record) -> str:
    return json.dumps(record) + "\n"


def describe_clients(scenario: Scenario) -> list[Record]:
    """Return the entries of clients.json, each with two marks, `split` and `images`, that tell different data apart."""
    pixels = torch.tensor([zlib.crc32(image) for image in scenario.images.numpy()])
    described = []
    for client in scenario.clients:
        parts = {part: getattr(client, part) for part in ("train", "validation", "test", "holdout")}
        # All images, whatever their use: the mark is the same for methods that split them differently.
        everything = torch.cat(list(parts.values())).unique()
        own = client.labelling if client.own_labelling is None else client.own_labelling
        targets = partial(_targets, scenario.labels, own)
        described.append(
            {
                "name": client.name,
                "domain": client.domain,
                "classes": list(client.classes),
                **{part: len(positions) for part, positions in parts.items()},
                "split": _mark(part for at in parts.values() for part in (at, targets(at))),
                "images": _mark((pixels[everything], targets(everything))),
            }
        )
    return described


def _targets(labels: torch.Tensor, labelling: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the classes at the positions in the client's own numbering, or the bits of numbers that are no classes."""
    found = labels[positions]
    return found.view(torch.int32) if found.is_floating_point() else labelling[found]


def _mark(several: Iterable[torch.Tensor]) -> str:
    """Return a digest of whole numbers as sixteen hexadecimal digits."""
    mark = hashlib.blake2b(digest_size=8)
    for numbers in several:
        mark.update(numbers.to(torch.int64).contiguous().numpy().tobytes())
    return mark.hexdigest()
