"""The compiled engine: the reference engine's local steps, captured as CUDA graphs, several clients at a time.

It serves any network, number of classes and optimiser. Everything except local training is the reference engine's. On a
CPU it runs the same code without captures, which is how its tests compare it with the reference engine.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor, nn

from factorized_fl.core.answers import checked_payload
from factorized_fl.core.clients import ClientState
from factorized_fl.core.views import Batch, Phase, Trained
from factorized_fl.engine import Work
from factorized_fl.engine.compiled.lane import Lane, LocalStep
from factorized_fl.engine.compiled.queues import Queue
from factorized_fl.engine.processor import repeatable
from factorized_fl.engine.reference import ReferenceEngine
from factorized_fl.engine.schedules import constant
from factorized_fl.engine.threads import using_threads

LANES = 4  # clients that train at a time
_TOGETHER = 8  # batches that are augmented at once: one batch alone takes longer to launch than to compute
_ROOM = 2**30  # bytes of a GPU's memory that further lanes leave free

Key = tuple[int, int]  # clients with one key share a captured step: number of classes, steps of an epoch if they matter


class CompiledEngine(ReferenceEngine):
    """Gives the reference engine's results up to rounding; steps that cannot be captured run in that engine."""

    def __init__(self, work: Work, lanes: int = LANES) -> None:
        super().__init__(work, half=work.device.type == "cuda" and work.config.precision == "bf16")
        self.most = lanes
        # A learning rate that changes from step to step, an optimiser of PyTorch and averaged weights follow the graph.
        training = self.training
        self.moves_inside = training.optimizer.build is None and training.schedule is constant and not training.ema
        self.lanes: dict[Key, list[Lane]] = {}
        self.draws = False  # whether a step draws random numbers: then clients train one after the other
        self.uploads = Queue(self.device)
        self.queues: list[tuple[Queue, Any]] = []

    def describe(self) -> dict[str, str | int]:
        """Returns "compiled" as the engine's name, and the rest of the reference engine's description."""
        return super().describe() | {"engine": "compiled"}

    def train(
        self, round_number: int, ks: Sequence[int], clients: ClientState, done: Callable[[int], None]
    ) -> dict[int, Trained]:
        """Trains clients in lanes; those with less than one batch, or without a captured step, in turn."""
        full = [k for k in ks if len(self.scenario.clients[k].train) >= self.config.batch_size]
        with self._algorithms(), using_threads(self.threads):
            for k in full:
                self._make_lanes(self._key(k), round_number, k, clients)
            full = [k for k in full if self.lanes[self._key(k)]]
            results = self._train_lanes(round_number, full, clients, done) if full else {}
        rest = [k for k in ks if k not in results]
        results |= super().train(round_number, rest, clients, done) if rest else {}
        return {k: results[k] for k in ks}

    @contextmanager
    def _algorithms(self) -> Iterator[None]:
        """Lets cuDNN time its algorithms unless results have to be repeatable."""
        if self.config.repeatable or self.device.type != "cuda":
            with repeatable():
                yield
            return
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before

    def _key(self, k: int) -> Key:
        return len(self.scenario.clients[k].classes), self.work.epoch_steps(k) if self.method.counts_steps else 0

    # -- lanes

    def _make_lanes(self, key: Key, round_number: int, k: int, clients: ClientState) -> None:
        """Makes the lanes of all clients like k, when the first of them trains; none if a capture fails."""
        if key in self.lanes:
            return
        lanes = self.lanes[key] = []
        alike = sum(self._key(other) == key for other in range(len(self.scenario.clients)))
        before, size = self._used(), 0
        try:
            for index in range(min(self.most, alike)):
                if index and not self._room(size):
                    break
                if index == len(self.queues):
                    pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
                    self.queues.append((Queue(self.device), pool))
                lanes.append(self._lane(index, round_number, k, clients))
                size = max(size, self._used() - before)
                before = self._used()
        except torch.OutOfMemoryError:
            if not lanes:
                self._refuse(k, "the GPU has too little memory")
        except RuntimeError as error:
            lanes.clear()
            self._refuse(k, str(error).strip().partition("\n")[0])

    def _refuse(self, k: int, reason: str) -> None:
        warnings.warn(
            f"The reference engine trains clients like {self.scenario.clients[k].name}, because their local step "
            f"cannot be captured ({reason}).",
            stacklevel=3,
        )

    def _lane(self, index: int, round_number: int, k: int, clients: ClientState) -> Lane:
        lane = Lane(self, clients, k, *self.queues[index])
        with self._seeded("torch", round_number, k):
            before = self._random_state()
            for number, phase in enumerate(self.method.phases()):
                with lane.queue.using():
                    lane.load(clients, k)
                    batches = next(self._taken(self.batches(round_number, k, phase, number)))
                lane.queue.lead()
                lane.steps.append(LocalStep(lane, clients, k, phase, batches))
            if self.device.type != "cuda":
                lane.steps[0].run(lane.steps[0].batches)  # on a GPU the capture has run it
            self.draws = self.draws or not torch.equal(before, self._random_state())
        return lane

    def _random_state(self) -> Tensor:
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()

    def _used(self) -> int:
        return torch.cuda.memory_reserved(self.device) if self.device.type == "cuda" else 0

    def _room(self, size: int) -> bool:
        """Whether the GPU has room for another lane of this size."""
        return self.device.type != "cuda" or torch.cuda.mem_get_info(self.device)[0] > size + _ROOM

    # -- a round

    def _train_lanes(
        self, round_number: int, ks: Sequence[int], clients: ClientState, done: Callable[[int], None]
    ) -> dict[int, Trained]:
        """Trains clients with a captured step, those with most steps first."""
        width = 1 if self.draws else min(len(self.lanes[self._key(k)]) for k in ks)
        waiting = deque(sorted(ks, key=lambda k: -self.work.step_count(k)))
        busy: dict[int, tuple[int, Iterator[Tensor]]] = {}
        losses: dict[int, list[Tensor]] = {k: [] for k in ks}
        for queue, _ in (*self.queues, (self.uploads, None)):
            queue.follow()
        while waiting or busy:
            for index in range(width):
                if index not in busy:
                    if not waiting:
                        continue
                    k = waiting.popleft()
                    busy[index] = k, self._steps(round_number, k, clients, self.lanes[self._key(k)][index])
                k, steps = busy[index]
                if (found := next(steps, None)) is not None:
                    losses[k].append(found)
                else:
                    del busy[index]
                    done(k)
        for queue, _ in self.queues:
            queue.lead()
        return {k: Trained(float(torch.cat(found).mean()), len(found)) for k, found in losses.items()}

    def _steps(self, round_number: int, k: int, clients: ClientState, lane: Lane) -> Iterator[Tensor]:
        """Trains one client in a lane; yields the losses of each step."""
        seeded = self._seeded("torch", round_number, k)
        with seeded if self.draws else nullcontext():
            with lane.queue.using():
                lane.load(clients, k)
            count = before = 0
            for index, phase in enumerate(self.method.phases()):
                before = count
                for losses in self._phase(round_number, k, clients, lane, index, phase, count):
                    count += 1
                    yield losses
            with lane.queue.using():
                lane.store(clients, k)
            lane.queue.lead()
            with nullcontext() if self.draws else seeded:
                self._finish(round_number, k, clients, lane, before, count)
            lane.queue.follow()

    def _phase(
        self, round_number: int, k: int, clients: ClientState, lane: Lane, index: int, phase: Phase, done: int
    ) -> Iterator[Tensor]:
        """Trains one phase of a client after `done` steps of the round; yields the losses of each step."""
        step, update = lane.steps[index], None
        average = {} if phase.model else clients.average.client(k)
        with lane.queue.using():
            parameters = {name: nn.Parameter(step.tensors[name]) for name in self._trained(k, phase)}
            if not self.moves_inside:
                update = self._update(k, clients, phase.model, dict(parameters))
        taken = self._taken(self._prepared(round_number, k, phase, index))
        while True:
            with self.uploads.using():
                batches = next(taken, None)
            if batches is None:
                break
            lane.queue.follow(self.uploads)
            lane.queue.reads(*(tensor for batch in batches for tensor in (batch.images, batch.labels)))
            with lane.queue.using():
                step.run(batches)
                if update is not None:
                    update.step(dict(step.gradient), self._factor(round_number, k, done))
                done += 1
                if average:
                    self._average(average, dict(parameters), done)
                losses = step.losses.clone()
            lane.queue.limit(2 * _TOGETHER)
            yield losses
        if update is not None:
            with lane.queue.using():
                update.keep()

    def _trained(self, k: int, phase: Phase) -> list[str]:
        """The names of the parameters that a phase trains."""
        trains = phase.trains or (lambda role: True)
        return [n for n, p in self._model(k).named_parameters() if p.requires_grad and trains(self.roles[n])]

    def _finish(self, round_number: int, k: int, clients: ClientState, lane: Lane, before: int, steps: int) -> None:
        """Calls the method's hook after training; `before` steps came before the last phase."""
        *_, phase = self.method.phases()
        own = clients.state.client(k)
        tensors = clients.models[phase.model].client(k) if phase.model else own
        gradient, _ = self._attach(k, tensors, [], phase)
        local = self._view(round_number, k, clients, {name: start.clone() for name, start in lane.start.items()})
        lr = self.config.lr * self._factor(round_number, k, before)
        local = replace(local, loss_gradient=gradient, tensors=own, phase=phase, steps=steps, lr=lr)
        with torch.no_grad():
            payload = self.method.finish(local)
        clients.outbox[k] = checked_payload(self.method.name, "finish", payload, clients.expected_up)

    # -- batches

    def _taken(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, ...]]:
        """Yields the batches of each step; too few for one step of distinct batches are repeated."""
        need, first = self.method.batches_per_step, True
        while step := tuple(islice(batches, need)):
            if len(step) < need:
                if not first:
                    return
                step = tuple(islice(cycle(step), need))
            first = False
            yield step

    def _prepared(self, round_number: int, k: int, phase: Phase, index: int) -> Iterator[Batch]:
        """Yields the reference engine's batches; on a GPU several are uploaded and augmented at once."""
        if self.device.type != "cuda" or self.inputs.own:
            yield from self.batches(round_number, k, phase, index)
            return
        drawn = self.work.batches(round_number, k, phase, index)
        while group := list(islice(drawn, _TOGETHER)):
            chosen = torch.cat([positions for positions, _ in group])
            draws = [draw for _, draw in group if draw is not None]
            images = self.inputs.augmented(self._sent(chosen), self._sent(torch.cat(draws)) if draws else None, None)
            labels = self._sent(self.scenario.targets(k, chosen))
            size = len(group[0][0])
            yield from (Batch(*pair) for pair in zip(images.split(size), labels.split(size), strict=True))

    def _sent(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory().to(self.device, non_blocking=True)
