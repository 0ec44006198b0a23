"""An observer that writes a run's metrics for TensorBoard, in the folder `tensorboard` of the run directory."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from factorized_fl.core.errors import UserError
from factorized_fl.results.schema import Record


def curves(records: Sequence[Record]) -> Iterator[tuple[str, float]]:
    """Yield the points of one round by name: accuracy, loss and others over all clients, by domain and by client."""
    groups: dict[str, list[Record]] = {"all clients": list(records)}
    for record in records:
        groups.setdefault(f"domain/{record['domain']}", []).append(record)
        groups[f"client/{record['client'] + 1}"] = [record]
    for group, members in groups.items():
        for name in ("accuracy", "score", "loss", "train_loss"):
            if values := [record[name] for record in members if record.get(name) is not None]:
                yield f"{name}/{group}", sum(values) / len(values)
    for way in ("up", "down"):
        yield f"bytes/{way}", sum(record[f"{way}_bytes"] for record in records)


class TensorBoardObserver:
    """Writes accuracy, loss and bytes after every round: means over clients, means per domain, and each client."""

    def __init__(self, directory: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError('TensorBoard is not installed: pip install "factorized-fl[tensorboard]".') from None
        self.directory = directory / "tensorboard"
        self.open = SummaryWriter
        self.writer: Any = None

    def __enter__(self) -> "TensorBoardObserver":
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()

    def started(self, federation: object, done: int) -> None:
        """Open the log and drop rounds after the checkpoint, because they will be written again."""
        self.writer = self.open(str(self.directory), purge_step=done + 1)

    def client_done(self, round_number: int, client: int) -> None:
        """Write nothing until the round is complete."""

    def round_done(self, round_number: int, records: Sequence[Record]) -> None:
        """Add one point to every curve."""
        for name, value in curves(records):
            self.writer.add_scalar(name, value, round_number)
        self.writer.flush()
