"""A lane: static tensors that hold one client at a time, and the local steps that work on them."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from factorized_fl.core.answers import checked_gradient
from factorized_fl.core.clients import ClientState
from factorized_fl.core.roles import trainable
from factorized_fl.core.stack import copy_pairs
from factorized_fl.core.views import Batch, Phase, Tensors
from factorized_fl.engine.compiled.queues import Queue
from factorized_fl.engine.training import clipped

if TYPE_CHECKING:
    from factorized_fl.engine.compiled.engine import CompiledEngine

_WARM_UP = 3  # steps before a capture: libraries choose algorithms and allocate in them
_CLOSE = 1e-3  # relative difference, in the largest entry, between a captured step and the same step uncaptured


class Lane:
    """The tensors of one client at a time, at addresses that do not change."""

    def __init__(self, engine: "CompiledEngine", clients: ClientState, k: int, queue: Queue, pool: Any) -> None:
        self.engine, self.queue, self.pool = engine, queue, pool
        self.held = {part: _copies(own) for part, own in self._parts(clients, k).items()}
        self.extra = _copies({name: stacked[k] for name, stacked in clients.inbox.items()})
        self.start = _copies({name: self.held["state"][name] for name in trainable(engine._model(k))})
        weights = engine._class_weights(k)
        self.weights = None if weights is None else weights.clone()
        self.steps: list[LocalStep] = []

    def _parts(self, clients: ClientState, k: int) -> dict[str, Tensors]:
        """Return the tensors of a client that local steps change, as views of the stacks."""
        parts = {"state": clients.state.client(k), "kept": clients.kept.client(k)}
        parts |= {f"models/{name}": stack.client(k) for name, stack in clients.models.items()}
        if self.engine.moves_inside:
            parts["momentum/"] = clients.momentum.client(k)
            parts |= {f"momentum/{name}": stack.client(k) for name, stack in clients.momenta.items()}
        return parts

    @torch.no_grad()
    def load(self, clients: ClientState, k: int) -> None:
        """Copies a client's tensors into the lane."""
        pairs = [(self.held[part][name], t) for part, own in self._parts(clients, k).items() for name, t in own.items()]
        pairs += [(tensor, clients.inbox[name][k]) for name, tensor in self.extra.items()]
        if self.weights is not None:
            weights = self.engine._class_weights(k)
            assert weights is not None
            pairs.append((self.weights, weights))
        copy_pairs(pairs)
        copy_pairs((start, self.held["state"][name]) for name, start in self.start.items())

    @torch.no_grad()
    def store(self, clients: ClientState, k: int) -> None:
        """Copies the lane's tensors back to the client."""
        copy_pairs(
            (t, self.held[part][name]) for part, own in self._parts(clients, k).items() for name, t in own.items()
        )

    def model(self, name: str) -> Tensors:
        """The tensors of the client's own model, "", or of a further one."""
        return self.held[f"models/{name}" if name else "state"]


class LocalStep:
    """One local step in one phase of training: a captured graph, on a CPU a plain call."""

    def __init__(self, lane: Lane, clients: ClientState, k: int, phase: Phase, batches: Sequence[Batch]) -> None:
        engine = lane.engine
        self.lane, self.engine, self.k, self.phase = lane, engine, k, phase
        self.tensors = lane.model(phase.model)
        self.batches = [Batch(torch.empty_like(b.images), torch.empty_like(b.labels)) for b in batches]
        self._fill(batches)
        self.local = replace(
            engine._view(1, k, clients, lane.start),
            tensors=self.tensors,
            kept=lane.held["kept"],
            extra=lane.extra,
            models={name: lane.model(name) for name in clients.models},
            phase=phase,
        )
        self.losses, self.gradient = torch.empty(0), Tensors()
        self.graph: torch.cuda.CUDAGraph | None = None
        if engine.device.type == "cuda":
            self._capture()

    def run(self, batches: Sequence[Batch]) -> None:
        """Trains on these batches; `losses` and `gradient` are then those of this step."""
        self._fill(batches)
        self._replay()

    def _replay(self) -> None:
        if self.graph is None:
            self.losses, self.gradient = self._compute()
        else:
            self.graph.replay()

    @torch.no_grad()
    def _fill(self, batches: Sequence[Batch]) -> None:
        for own, given in zip(self.batches, batches, strict=True):
            own.images.copy_(given.images)
            own.labels.copy_(given.labels)

    def _compute(self) -> tuple[Tensor, Tensors]:
        """Takes the step as the reference engine does; returns its losses and its gradient."""
        engine, losses = self.engine, list[Tensor]()
        loss_gradient, parameters = engine._attach(self.k, self.tensors, losses, self.phase, self.lane.weights)
        gradient = engine.method.gradient(replace(self.local, loss_gradient=loss_gradient), parameters, self.batches)
        gradient = clipped(checked_gradient(engine.method.name, gradient, parameters), engine.training.clip)
        gradient = {name: gradient[name].detach() for name in parameters}
        if engine.moves_inside:
            self._move(gradient)
        return torch.stack(losses), gradient

    @torch.no_grad()
    def _move(self, gradient: Tensors) -> None:
        """SGD as `SgdUpdate` computes it, on all tensors in few launches."""
        config, buffers = self.engine.config, self.lane.held[f"momentum/{self.phase.model}"]
        own, momentum = [self.tensors[name] for name in gradient], [buffers[name] for name in gradient]
        decayed = torch._foreach_add(list(gradient.values()), own, alpha=config.weight_decay)
        torch._foreach_mul_(momentum, config.momentum)
        torch._foreach_add_(momentum, decayed)
        torch._foreach_add_(own, momentum, alpha=-config.lr)

    # -- on a GPU

    def _capture(self) -> None:
        """Captures the step; raises RuntimeError if that is impossible or if the graph gives other results."""
        queue = self.lane.queue
        queue.follow()
        with queue.using():
            self._compute()
            with _no_waiting():
                for _ in range(_WARM_UP - 1):
                    self._compute()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.lane.pool, stream=queue.stream):
            self.losses, self.gradient = self._compute()
        self.graph = graph
        with queue.using():
            self._check()

    @torch.no_grad()
    def _check(self) -> None:
        """Compares the graph with the same step computed without it, on other pairs of inputs and labels.

        Raises RuntimeError if they differ: a value that changes from step to step was captured as a constant.
        """
        for batch in self.batches:
            batch.labels.copy_(batch.labels.flip(0))
        tensors = [tensor for part in self.lane.held.values() for tensor in part.values()]
        before, stream = [tensor.clone() for tensor in tensors], torch.cuda.get_rng_state()
        self._replay()
        found = [tensor.clone() for tensor in (*tensors, self.losses, *self.gradient.values())]
        copy_pairs(zip(tensors, before, strict=True))
        torch.cuda.set_rng_state(stream)
        with torch.enable_grad():
            losses, gradient = self._compute()
        wanted = (*tensors, losses, *gradient.values())
        if not all(_close(one, other) for one, other in zip(found, wanted, strict=True)):
            raise RuntimeError("a captured step gives other results than the same step computed without a capture")


def _copies(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _close(found: Tensor, wanted: Tensor) -> bool:
    """Whether two tensors are equal up to rounding, relative to the largest entry; non-finite tensors are equal."""
    if not wanted.is_floating_point():
        return torch.equal(found, wanted)
    found, wanted = found.double(), wanted.double()
    if not wanted.isfinite().all():
        return not bool(found.isfinite().all())
    return not wanted.numel() or bool((found - wanted).abs().max() <= _CLOSE * wanted.abs().max())


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Raises RuntimeError where the host waits for the device: a failed capture can leave generators unusable."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
