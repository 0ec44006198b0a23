"""Several processes that simulate one federation together, on one machine or several (torch.distributed, gloo).

Each client is pinned to one process, its rank, and only this process holds the client's current private tensors. After
local training the ranks exchange what the clients share; every rank then computes the same server half of a round. One
rank, the leader, writes the run directory. The network between the machines must be trusted, as torch.distributed
neither encrypts nor authenticates.
"""

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from factorized_fl.config import Config
from factorized_fl.core.clients import ClientState, Engine
from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import EXTRA, FINGERPRINT
from factorized_fl.core.views import Cost, Evaluated, Mixing, Tensors, Trained
from factorized_fl.data.scenarios import Scenario
from factorized_fl.results.rundir import Record, RunDirectory

Value = TypeVar("Value")
RENDEZVOUS = "FFL_RENDEZVOUS"  # the address at which processes of one machine find each other


LOST = "Another process of this run has ended: see its message, then repeat with --resume."


class RankLost(UserError):
    """Another process of this run has ended."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a run: this one's number, and how many there are."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the run directory and reports progress."""
        return self.rank == 0

    def gather(self, value: Value) -> list[Value]:
        """Every process's value, in the order of the ranks; raises RankLost if a process has ended."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        with _peers():
            dist.all_gather_object(found, value)
        return found

    def same(self, value: Value) -> Value:
        """Return the leader's value."""
        return self.gather(value if self.leads else None)[0]  # type: ignore[return-value]

    def exchange(self, stacked: Mapping[str, torch.Tensor], owned: Sequence[Sequence[int]]) -> None:
        """Copies rows between ranks in place: afterwards every rank has the rows `owned[r]` of rank r.

        `stacked` has tensors [K, ...] under the same names at every rank.
        """
        most = max(map(len, owned))
        for dtype in dict.fromkeys(tensor.dtype for tensor in stacked.values()) if self.size > 1 and most else ():
            tensors = [tensor for tensor in stacked.values() if tensor.dtype == dtype]
            own = list(owned[self.rank])
            rows = torch.cat([tensor[own][:, None].flatten(1).cpu() for tensor in tensors], dim=1)
            padded = torch.zeros(most, rows.shape[1], dtype=dtype)
            padded[: len(own)] = rows
            given = [torch.empty_like(padded) for _ in owned]
            with _peers():
                dist.all_gather([rows.view(torch.uint8) for rows in given], padded.view(torch.uint8))
            for rank, found in enumerate(given):
                if rank != self.rank and owned[rank]:
                    parts = found[: len(owned[rank])].split([tensor[0].numel() for tensor in tensors], dim=1)
                    for tensor, part in zip(tensors, parts, strict=True):
                        tensor[list(owned[rank])] = part.reshape(-1, *tensor.shape[1:]).to(tensor.device)


ALONE = Ranks()


class Follower(RunDirectory):
    """The run directory as a rank that is not the leader uses it: nothing is read or written."""

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Locks nothing."""
        yield

    def rounds_done(self, config: Config, resume: bool) -> int:
        """Returns 0: the leader knows."""
        return 0

    def summary(self) -> Record | None:
        """Returns None: the leader knows."""
        return None

    def metrics_size(self) -> int:
        """Returns 0: the leader knows."""
        return 0

    def begin(
        self, config: Config, environment: Record, clients: Sequence[Record], done: int, metrics_size: int | None = None
    ) -> None:
        """Writes nothing, as all methods below."""

    def refuse_other_data(self, clients: Sequence[Record]) -> None:  # noqa: D102
        return

    def append(self, name: str, records: Iterable[Record]) -> None:  # noqa: D102
        return

    def save_mixing(self, round_number: int, mixing: Mixing) -> None:  # noqa: D102
        return

    def save_trace(self, round_number: int, tensors: Mapping[str, torch.Tensor]) -> None:  # noqa: D102
        return

    def save_checkpoint(self, round_number: int, tensors: Mapping[str, torch.Tensor], **tags: str) -> None:  # noqa: D102
        return

    def save_graded(self, scenario: Scenario, results: Mapping[int, Evaluated]) -> None:  # noqa: D102
        return

    def save_analysis(self, analysis: Mapping[str, object]) -> None:  # noqa: D102
        return

    def save_summary(self, summary: Mapping[str, object]) -> None:  # noqa: D102
        return


class _peers:
    """Turns a failure of the connection between ranks into a sentence."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError):
            raise RankLost(LOST) from None


def find_ranks() -> Ranks:
    """The ranks of this process's run, as torchrun or `ffl run --processes` describe them in the environment.

    Waits for all processes to connect. Raises UserError if they do not.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        return ALONE
    if not dist.is_initialized():
        try:
            dist.init_process_group(
                "gloo", init_method=os.environ.get(RENDEZVOUS, "env://"), rank=int(os.environ["RANK"]), world_size=size
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise UserError(f"The processes of this run cannot connect ({error}): start all of them again.") from None
        atexit.register(dist.destroy_process_group)  # its threads would otherwise abort the process
        here = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // here))
    return Ranks(dist.get_rank(), dist.get_world_size())


def pin(work: Sequence[float], size: int) -> list[int]:
    """Returns the rank of each client: in order of decreasing work, each goes to the rank with the least work."""
    loads, ranks = [0.0] * size, [0] * len(work)
    for k in sorted(range(len(work)), key=lambda k: (-work[k], k)):
        rank = min(range(size), key=lambda r: (loads[r], r))
        ranks[k], loads[rank] = rank, loads[rank] + work[k]
    return ranks


class RankedClients(ClientState):
    """The clients of a run of several ranks: this rank trains its own and receives the shared tensors of the others."""

    ranks: Ranks
    rank_of: Sequence[int]
    _extras: dict[int, Tensors]  # payloads of each client in this round besides the shared tensors
    _costs: dict[int, Cost]  # by client that has trained since this process began

    def pin(self, ranks: Ranks, rank_of: Sequence[int]) -> None:
        """Sets which rank each client belongs to; called once, before the first round."""
        self.ranks, self.rank_of, self._extras, self._costs = ranks, rank_of, {}, {}

    def owned(self, ks: Iterable[int]) -> list[list[int]]:
        """The clients among `ks` of each rank."""
        places = list(ks)
        return [[k for k in places if self.rank_of[k] == rank] for rank in range(self.ranks.size)]

    def own(self, ks: Iterable[int]) -> list[int]:
        """The clients among `ks` of this rank."""
        return [k for k in ks if self.rank_of[k] == self.ranks.rank]

    def receive(
        self, round_number: int, items: Iterable[tuple[str, torch.Tensor]], rows: Mapping[int, int], engine: Engine
    ) -> None:
        """Takes the download of this rank's clients."""
        super().receive(round_number, items, {k: row for k, row in rows.items() if k in self.own(rows)}, engine)

    def train(
        self, round_number: int, ks: Sequence[int], engine: Engine, done: Callable[[int], None] = lambda k: None
    ) -> dict[int, Trained]:
        """Trains this rank's clients, then exchanges the shared tensors with the other ranks."""
        own, owned = self.own(ks), self.owned(ks)
        trained = super().train(round_number, own, engine, done)
        self.trained[list(ks)] = True
        self.ranks.exchange({n: t for n, t in self.state.common.items() if n in self.shared}, owned)
        if self.method.needs_start:
            self.ranks.exchange({n: t for n, t in self.start.common.items() if n in self.shared}, owned)
        sent = [(n, rows) for n, rows in super().send(own) if n == FINGERPRINT or n.startswith(EXTRA)]
        extras = {k: {name: rows[row] for name, rows in sent} for row, k in enumerate(own)}
        self._extras = {}
        results: dict[int, Trained] = {}
        costs = {k: super(RankedClients, self).cost(k) for k in own}
        for their_extras, their_costs, their_results in self.ranks.gather((extras, costs, trained)):
            self._extras |= their_extras
            self._costs |= their_costs
            results |= their_results
        for k in ks:
            if k not in own:
                done(k)
        return {k: results[k] for k in ks}

    def send(self, ks: Sequence[int]) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the messages of the clients of all ranks, as in a simulation in one process."""
        if not (self.shared or self.expected_up) or not ks:
            return
        for name, stacked in self.state.common.items():
            if name in self.shared:
                yield name, stacked[list(ks)]
        for name in self._extras[ks[0]]:
            yield name, torch.stack([self._extras[k][name] for k in ks])

    def cost(self, k: int) -> Cost:
        """The cost that the rank of client k computed; until it trains, all ranks have the same tensors of it."""
        return self._costs[k] if k in self._costs else super().cost(k)

    def complete(self, stacked: Mapping[str, torch.Tensor]) -> None:
        """Fills in the rows of the clients of other ranks."""
        self.ranks.exchange(stacked, self.owned(range(len(self))))

    def complete_all(self) -> None:
        """Fills in all tensors of the clients of other ranks that a checkpoint holds."""
        own = self.own(range(len(self)))
        for stack in self.stacks.values():
            self.complete(stack.common)
        apart = {name: {k: stack.own[k] for k in own} for name, stack in self.stacks.items() if any(stack.own)}
        for found in self.ranks.gather(apart) if apart else ():
            self._take(found)

    def _take(self, found: Mapping[str, Mapping[int, Tensors]]) -> None:
        for name, of_clients in found.items():
            for k, tensors in of_clients.items():
                for key, tensor in tensors.items():
                    self.stacks[name].own[k][key].copy_(tensor)


class RankedEngine:
    """Trains and tests this rank's clients with an engine, and receives the results of the other ranks."""

    def __init__(self, engine: Engine, clients: RankedClients) -> None:
        self.engine, self.clients = engine, clients

    def describe(self) -> dict[str, str | int]:
        """Returns the engine's description, and the number of processes."""
        return {**self.engine.describe(), "processes": self.clients.ranks.size}

    def train(
        self, round_number: int, ks: Sequence[int], clients: ClientState, done: Callable[[int], None]
    ) -> dict[int, Trained]:
        """Trains these clients, all of this rank."""
        return self.engine.train(round_number, ks, clients, done) if ks else {}

    def evaluate(
        self,
        round_number: int,
        ks: Sequence[int],
        clients: ClientState,
        *,
        recalibrate: bool | None = None,
        part: str = "test",
    ) -> dict[int, Evaluated]:
        """Returns the test results of all clients."""
        own = self.clients.own(ks)
        tested = self.engine.evaluate(round_number, own, clients, recalibrate=recalibrate, part=part) if own else {}
        results = {k: result for found in self.clients.ranks.gather(tested) for k, result in found.items()}
        return {k: results[k] for k in ks}

    def tested(self, round_number: int, k: int, clients: ClientState, recalibrate: bool | None = None) -> Tensors:
        """Returns the tensors of the tested model of a client of this rank."""
        return self.engine.tested(round_number, k, clients, recalibrate)

    def confusion(self, round_number: int, ks: Sequence[int], clients: ClientState) -> list[torch.Tensor]:
        """Returns the confusion matrices of all clients."""
        own = self.clients.own(ks)
        counts = self.engine.confusion(round_number, own, clients) if own else []
        found = self.clients.ranks.gather(dict(zip(own, counts, strict=True)))
        return [{k: matrix for part in found for k, matrix in part.items()}[k] for k in ks]

    def validation_losses(self, k: int, own: Tensors, candidates: Tensors) -> Sequence[float]:
        """Returns the losses that the rank of client k computes."""
        mine = self.clients.rank_of[k] == self.clients.ranks.rank
        losses = list(self.engine.validation_losses(k, own, candidates)) if mine else None
        return self.clients.ranks.gather(losses)[self.clients.rank_of[k]] or []

    def receive(self, round_number: int, k: int, clients: ClientState, given: Tensors) -> Tensors:
        """Returns the tensors with which a client of this rank begins the round."""
        return self.engine.receive(round_number, k, clients, given)
