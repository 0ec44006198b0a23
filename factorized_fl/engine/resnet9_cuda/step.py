"""One optimisation step of all lanes as a captured CUDA graph."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from factorized_fl.core.answers import checked_gradient
from factorized_fl.core.clients import ClientState
from factorized_fl.core.stack import copy_pairs
from factorized_fl.core.views import Batch, Local, Tensors
from factorized_fl.engine.resnet9_cuda.augment import COLUMNS, make_batch
from factorized_fl.engine.resnet9_cuda.lanes import Stay

if TYPE_CHECKING:
    from factorized_fl.engine.resnet9_cuda.engine import CudaEngine


class Step:
    """The graph of a step, and the static tensors that it reads and writes."""

    def __init__(self, engine: "CudaEngine", clients: ClientState) -> None:
        self.engine, work, config = engine, engine.work, engine.config
        lanes, need, size = engine.lanes, engine.method.batches_per_step, config.batch_size
        height, width = engine.images.shape[2:]
        device = engine.device
        first = [lane % len(clients) for lane in range(lanes)]  # any clients: `load` replaces them
        self.tensors = {name: stacked[first].clone() for name, stacked in clients.state.common.items()}
        self.momentum = {name: stacked[first].clone() for name, stacked in clients.momentum.common.items()}
        self.parameters = {name: self.tensors[name].requires_grad_() for name in self.momentum}
        self.start = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        self.positions = torch.zeros(need, lanes, size, dtype=torch.int64, device=device)
        self.labels = torch.zeros_like(self.positions)
        self.rows = engine.plain_row.expand(need, lanes, size, COLUMNS).clone()
        self.pixels = torch.empty(need, lanes, size, 3, height, width, dtype=engine.dtype, device=device)
        self.loss = torch.zeros(lanes, device=device)
        self.losses: list[Tensor] = []
        self.local = Local(
            self.loss_gradient, work.roles, work.shared, self.start, lr=config.lr, trained=frozenset(self.parameters)
        )
        self._capture()

    def _capture(self) -> None:
        """Warm up and record one step, on a separate stream as capturing requires."""
        self.engine.model.train()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self._step()

    def loss_gradient(self, at: Tensors, batch: Batch) -> Tensors:
        """Return the gradients of all lanes at once: a lane's loss depends on its own tensors only."""
        stacked, tensors = self.engine.stacked, {**self.tensors, **at}
        logits = stacked.logits(tensors, stacked.weights(tensors), batch.images)
        each = cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
        losses = each.view_as(batch.labels).mean(1)
        self.losses.append(losses.detach())
        return dict(zip(at, torch.autograd.grad(losses.sum(), list(at.values())), strict=True))

    def _step(self) -> None:
        engine, config = self.engine, self.engine.config
        batches = []
        for positions, labels, rows, pixels in zip(self.positions, self.labels, self.rows, self.pixels, strict=True):
            make_batch(engine.images, positions, rows, pixels, engine.normalisation, config.augment == "paper")
            batches.append(Batch(pixels, labels))
        self.losses.clear()
        gradient = engine.method.gradient(self.local, self.parameters, batches)
        gradient = checked_gradient(engine.method.name, gradient, self.parameters)
        with torch.no_grad():
            torch._fused_sgd_(
                list(self.parameters.values()),
                [gradient[name].contiguous() for name in self.parameters],
                [self.momentum[name] for name in self.parameters],
                weight_decay=config.weight_decay, momentum=config.momentum, lr=config.lr,
                dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
            )  # fmt: skip
            self.loss.copy_(torch.stack(self.losses).mean(0))

    @torch.no_grad()
    def load(self, stays: Sequence[Stay], clients: ClientState) -> None:
        """Copy the clients of these stays into their lanes."""
        copy_pairs(self._places(stays, clients))
        starts = [(start, self.parameters[name]) for name, start in self.start.items()]
        copy_pairs((start[stay.lane], own[stay.lane]) for start, own in starts for stay in stays)

    @torch.no_grad()
    def store(self, stays: Sequence[Stay], clients: ClientState) -> None:
        """Copy the clients of these stays back to the stacks; the results of idle lanes are never read."""
        copy_pairs((client, place) for place, client in self._places(stays, clients))
        for stay in stays:
            start = {name: tensor[stay.lane] for name, tensor in self.start.items()}
            steps, tensors = stay.end - stay.first, clients.state.client(stay.client)
            self.engine.method.finish(replace(self.local, start=start, steps=steps, tensors=tensors))

    def _places(self, stays: Sequence[Stay], clients: ClientState) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every tensor of these clients twice: its place in the lane and its place in the stack."""
        for mine, stack in ((self.tensors, clients.state.common), (self.momentum, clients.momentum.common)):
            for name, tensor in mine.items():
                for stay in stays:
                    yield tensor[stay.lane], stack[name][stay.client]

    def run(self, positions: Tensor, labels: Tensor, rows: Tensor) -> None:
        """Run one step on these batches."""
        for place, given in ((self.positions, positions), (self.labels, labels), (self.rows, rows)):
            place.copy_(given)
        self.graph.replay()
