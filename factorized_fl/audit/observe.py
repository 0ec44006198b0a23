"""The view of each party of a simulated federation: its rounds are run again, and every message is recorded.

A run is a function of its configuration and its data, so the run that is audited can be repeated, and repeated with
other training images of each client. With these shadow runs an attacker measures the effect of membership.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch

from factorized_fl.config import Config
from factorized_fl.core.clients import ClientState, Engine
from factorized_fl.core.ledger import EXTRA, FINGERPRINT
from factorized_fl.core.mixing import dense
from factorized_fl.core.named import NOTHING, Brought
from factorized_fl.core.views import Tensors, Trained
from factorized_fl.data.scenarios import Scenario
from factorized_fl.methods import fingerprints
from factorized_fl.nn.own import Factory
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import run_round

Items = Iterable[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Source:
    """The configuration, data and network of a run."""

    config: Config
    scenario: Scenario
    factory: Factory | None = None
    brought: Brought = field(default_factory=lambda: NOTHING)

    def build(self, noise_seed: int | None = None) -> Federation:
        """Return the federation at its start, on the CPU and the reference engine."""
        return build_federation(
            *(self.config, self.scenario, torch.device("cpu"), "reference", noise_seed, self.factory),
            brought=self.brought,
        )

    def tested_last(self) -> "Source":
        """Return the source of a run that tests its clients after the last round only."""
        return replace(self, config=replace(self.config, test_every=self.config.rounds))


@dataclass
class Seen:
    """The shared tensors that travelled in each round, and the clients' own models.

    Fingerprints and further payloads are left out: attacks use the tensors of the model.
    """

    initial: list[Tensors]  # each client's tensors before the first round
    uploads: list[dict[int, Tensors]] = field(default_factory=list)  # by round, from 0, and client
    downloads: list[dict[int, Tensors]] = field(default_factory=list)  # by round and receiver; decrypted
    weights: list[torch.Tensor | None] = field(default_factory=list)  # of each round's mixing, [K, K]
    final: list[Tensors] = field(default_factory=list)  # each client's own tensors after the last round
    accuracies: list[float | None] = field(default_factory=list)

    def before(self, round_index: int, k: int) -> Tensors:
        """Return the shared tensors that client k began a round with, as far as the coordinator knows them."""
        sent = self.downloads[round_index].get(k, {})
        earlier = [seen[k] for seen in self.uploads[:round_index] if k in seen]
        known = earlier[-1] if earlier else {n: self.initial[k][n] for n in self.uploads[round_index].get(k, {})}
        return known | sent

    def contributors(self, receiver: int, round_index: int) -> torch.Tensor | None:
        """Return each client's weight in a download; None if nothing was mixed."""
        weights = self.weights[round_index]
        return None if weights is None else weights[receiver]


def observe(source: Source, noise_seed: int | None = None, done: Callable[[], None] = lambda: None) -> Seen:
    """Run a federation and return all messages; `done` is called after each round."""
    federation = source.build(noise_seed)
    everyone = range(len(federation.scenario.clients))
    seen = Seen([_copies(federation.clients.state.client(k)) for k in everyone])
    plain = federation.clients
    federation.clients = cast(ClientState, _Noting(plain, seen))
    accuracies: dict[int, float | None] = {}
    for round_number in range(1, source.config.rounds + 1):
        seen.uploads.append({})
        seen.downloads.append({})
        records, mixing = run_round(federation, round_number)
        seen.weights.append(None if mixing is None else dense(mixing.weights))
        accuracies |= {record["client"]: record["accuracy"] for record in records}
        done()
    seen.final = [_copies(plain.state.client(k)) for k in everyone]
    seen.accuracies = [accuracies.get(k) for k in everyone]
    return seen


class _Noting:
    """The clients of a federation, which record their downloads and uploads."""

    def __init__(self, clients: ClientState, seen: Seen) -> None:
        self._clients, self._seen = clients, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clients, name)

    def __len__(self) -> int:
        return len(self._clients)

    def receive(self, round_number: int, items: Items, rows: Mapping[int, int], engine: Engine) -> None:
        self._clients.receive(round_number, self._note(items, rows, self._seen.downloads[-1]), rows, engine)

    def train(
        self, round_number: int, ks: Sequence[int], engine: Engine, done: Callable[[int], None] = lambda k: None
    ) -> dict[int, Trained]:
        return self._clients.train(round_number, ks, engine, done)

    def send(self, ks: Sequence[int]) -> Iterator[tuple[str, torch.Tensor]]:
        return self._note(self._clients.send(ks), {k: row for row, k in enumerate(ks)}, self._seen.uploads[-1])

    def _note(self, items: Items, rows: Mapping[int, int], found: dict[int, Tensors]) -> Iterator[Any]:
        for name, stacked in items:
            if name != FINGERPRINT and not name.startswith(EXTRA):
                for k, row in rows.items():
                    found.setdefault(k, {})[name] = stacked[row].clone()
            yield name, stacked


def _copies(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items() if name != fingerprints.NAME}
