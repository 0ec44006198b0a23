"""The CUDA engine: clients train side by side in the lanes of one captured graph per step.

The dataset stays on the GPU as uint8; the batches of a round are drawn on the CPU, as in the reference engine, and
uploaded in advance. Parameters, momentum and statistics are float32. The host does not wait for the device within a
round.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from torch.nn.utils.rnn import pad_sequence

from factorized_fl.core.clients import ClientState
from factorized_fl.core.stack import ClientStack
from factorized_fl.core.views import Evaluated, Tensors, Trained
from factorized_fl.engine.reference import ReferenceEngine
from factorized_fl.engine.resnet9_cuda.augment import COLUMNS, make_batch, plain_row
from factorized_fl.engine.resnet9_cuda.lanes import Stay, choose_lanes, schedule
from factorized_fl.engine.resnet9_cuda.norm import MOMENTUM
from factorized_fl.engine.resnet9_cuda.stacked import TEST_PIXELS, StackedResNet9
from factorized_fl.engine.resnet9_cuda.step import Step
from factorized_fl.tasks.augment import plan_augmentation
from factorized_fl.tasks.confusion import count_confusion

_TOGETHER = 10  # clients that are evaluated at once
_SIZES = 128  # large batches of an evaluation are multiples of it, small ones powers of two


class CudaEngine:
    """Gives the reference engine's results up to rounding, and passes to that engine the cases it does not cover."""

    def __init__(self, reference: ReferenceEngine, lanes: int | None = None) -> None:
        self.reference = reference
        self.work, self.config, self.method = reference.work, reference.config, reference.method
        self.scenario, self.device, self.images = reference.scenario, reference.device, reference.images
        self.normalisation = self.scenario.mean, self.scenario.std
        self.receive, self.tested = reference.receive, reference.tested  # hooks run one client at a time
        steps = [self._steps(k) for k in range(len(self.scenario.clients))]
        self.lanes = lanes or choose_lanes(steps)
        self.dtype = torch.bfloat16 if self.config.precision == "bf16" else torch.float32
        # Timing finds the fastest algorithms, but may choose others in another process.
        torch.backends.cudnn.benchmark = not self.config.repeatable
        (self.model,) = reference.models.values()
        self.stacked = StackedResNet9(self.model, self.dtype)
        self.step: Step | None = None
        self.uploads = torch.cuda.Stream()
        self.plain_row = plain_row(*self.images.shape[2:]).to(self.device)
        self.ahead: dict[tuple[int | Stay, ...], tuple[Tensor, ...]] = {}  # uploaded batches by round and stays
        self.plain_batches: dict[int, Tensor] = {}  # by client, on the device
        self.parts: dict[tuple[str, int], tuple[Tensor, ...]] = {}  # positions and labels by part and client

    def describe(self) -> dict[str, str | int]:
        """Return the engine's name and the precision of its convolutions."""
        return {"engine": "cuda", "convolutions": self.config.precision}

    # -- training

    def train(
        self, round_number: int, ks: Sequence[int], clients: ClientState, done: Callable[[int], None]
    ) -> dict[int, Trained]:
        """Train the clients in lanes, those with less than one batch on the reference engine."""
        full = {k: self._steps(k) for k in ks if len(self.scenario.clients[k].train) >= self.config.batch_size}
        short = [k for k in ks if k not in full]
        stays = schedule(full, self.lanes)
        log = self._train_lanes(round_number, stays, clients, done) if stays else torch.empty(0)
        if len(full) == len(self.scenario.clients) and round_number < self.config.rounds:
            # The batches of the next round are prepared while the device computes.
            self.ahead = {(round_number + 1, *stays): self._upload(round_number + 1, stays)}
        results = self.reference.train(round_number, short, clients, done) if short else {}
        losses = log.cpu()
        for stay in stays:
            mean = losses[stay.first : stay.end, stay.lane].mean()
            results[stay.client] = Trained(float(mean), stay.end - stay.first)
        clients.outbox |= {k: {} for k in full}  # methods with payloads of their own run on the reference engine
        return {k: results[k] for k in ks}

    def _steps(self, k: int) -> int:
        return max(1, self.work.batch_count(k) // self.method.batches_per_step)

    def _train_lanes(
        self, round_number: int, stays: Sequence[Stay], clients: ClientState, done: Callable[[int], None]
    ) -> Tensor:
        """Run the steps of a round and return their losses [steps, lanes], still on the device."""
        step = self.step = self.step or Step(self, clients)
        batches = self.ahead.pop((round_number, *stays), None) or self._upload(round_number, stays)
        for tensor in batches:  # allocated on another stream
            tensor.record_stream(torch.cuda.current_stream())
        log = torch.empty(len(batches[0]), self.lanes, device=self.device)
        for index, batch in enumerate(zip(*batches, strict=True)):
            if coming := [stay for stay in stays if stay.first == index]:
                step.load(coming, clients)
            step.run(*batch)
            log[index].copy_(step.loss)
            if going := [stay for stay in stays if stay.end == index + 1]:
                step.store(going, clients)
            for stay in going:
                done(stay.client)
        return log

    def _upload(self, round_number: int, stays: Sequence[Stay]) -> tuple[Tensor, ...]:
        """Upload the batches of a round; return positions, labels and plans, each [steps, per step, lanes, B, ...]."""
        steps = max(stay.end for stay in stays)
        need, size = self.method.batches_per_step, self.config.batch_size
        positions, labels = torch.zeros(2, steps * need, self.lanes, size, dtype=torch.int64)
        draws: list[tuple[slice, int, Tensor]] = []  # steps, lane and draws, if images are augmented
        height, width = self.images.shape[2:]
        for stay in stays:
            client = self.scenario.clients[stay.client]
            count = (stay.end - stay.first) * need
            batches = list(islice(self.work.batches(round_number, stay.client), count))
            while len(batches) < need:  # too few images for one step of distinct batches
                batches += batches[: need - len(batches)]
            own = torch.stack([chosen for chosen, _ in batches])
            when = slice(stay.first * need, stay.first * need + len(own))
            positions[when, stay.lane] = own
            labels[when, stay.lane] = client.labelling[self.scenario.labels[own]]
            if drawn := [draw for _, draw in batches if draw is not None]:
                draws.append((when, stay.lane, torch.stack(drawn)))
        with torch.cuda.stream(self.uploads):
            sent = [tensor.pin_memory().to(self.device, non_blocking=True) for tensor in (positions, labels)]
            rows = self.plain_row.expand(steps * need, self.lanes, size, COLUMNS).clone()
            for when, lane, own in draws:
                there = own.pin_memory().to(self.device, non_blocking=True)
                rows[when, lane] = plan_augmentation(there.flatten(0, 1), height, width).view(*own.shape[:2], -1)
        torch.cuda.current_stream().wait_stream(self.uploads)
        return tuple(tensor.view(steps, need, *tensor.shape[1:]) for tensor in (*sent, rows))

    @torch.no_grad()
    def _recalibrated(self, group: Sequence[int], tensors: Tensors) -> Tensors:
        """Return the clients' tensors with statistics that are the mean over plain batches, as the reference engine.

        The statistics of all layers are views of one tensor, because the launches from the host take longer than the
        computation on the device.
        """
        positions, counts = self._plain_batches(group)
        names = [name for name in tensors if name.endswith(("running_mean", "running_var"))]
        sizes = [tensors[name].numel() for name in names]
        batches = torch.cat([counts.expand_as(tensors[name]).flatten() for name in names])
        statistics = torch.zeros(sum(sizes), device=self.device)
        total = torch.zeros_like(statistics)
        own = zip(names, statistics.split(sizes), strict=True)
        tensors = tensors | {name: part.view(len(group), -1) for name, part in own}
        self.model.eval()  # the weights of evaluation mode
        weights = self.stacked.weights(tensors)
        self.model.train()
        for index, chosen in enumerate(positions):
            statistics.zero_()
            self.stacked.logits(tensors, weights, self._plain(chosen))
            total.addcmul_(statistics, (index < batches).to(statistics))
        # Statistics that start from zero are the batch's statistics times the momentum.
        total /= MOMENTUM * batches
        measured = zip(names, total.split(sizes), strict=True)
        return tensors | {name: part.view(len(group), -1) for name, part in measured}

    def _plain_batches(self, group: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the positions of a group's plain batches [n, G, B] and their number per lane [G, 1], on the device."""
        for k in group:
            if k not in self.plain_batches:
                self.plain_batches[k] = self.work.plain_batches(k).to(self.device)
        own = [self.plain_batches[k] for k in group]
        counts = torch.tensor([[len(batches)] for batches in own]).pin_memory()
        return pad_sequence(own), counts.to(self.device, non_blocking=True)

    def _plain(self, chosen: Tensor) -> Tensor:
        """Return the normalised images [G, B, 3, H, W] at the positions [G, B], without augmentation."""
        height, width = self.images.shape[2:]
        row = self.plain_row.expand(chosen.numel(), COLUMNS).contiguous()
        pixels = torch.empty(chosen.numel(), 3, height, width, dtype=self.dtype, device=self.device)
        make_batch(self.images, chosen.reshape(-1), row, pixels, self.normalisation, False)
        return pixels.view(*chosen.shape, 3, height, width)

    # -- evaluation

    def evaluate(
        self,
        round_number: int,
        ks: Sequence[int],
        clients: ClientState,
        *,
        recalibrate: bool | None = None,
        part: str = "test",
    ) -> dict[int, Evaluated]:
        """Evaluate the clients in groups, all images of a group in few large batches."""
        if self.method.personal:
            return self.reference.evaluate(round_number, ks, clients, recalibrate=recalibrate, part=part)
        groups = self._groups(ks, clients.state, recalibrate)
        counted = [(group, *self._test(group, tensors, part)) for group, tensors in groups]
        results = {}
        for group, losses, right in counted:
            for k, loss, padded in zip(group, losses.tolist(), right.cpu(), strict=True):
                bits = padded[: len(getattr(self.scenario.clients[k], part))].clone()
                results[k] = Evaluated(int(bits.sum()), len(bits), loss, bits)
        return results

    def confusion(self, round_number: int, ks: Sequence[int], clients: ClientState) -> list[Tensor]:
        """Return the confusion matrix of each client, counted in the groups of `evaluate`."""
        if self.method.personal:
            return self.reference.confusion(round_number, ks, clients)
        (classes,) = self.reference.models
        matrices: list[Tensor] = []
        for group, tensors in self._groups(ks, clients.state):
            counts = torch.zeros(len(group), classes, classes, dtype=torch.int64, device=self.device)
            for logits, labels in self._outputs(group, tensors, "test"):
                count_confusion(counts, logits, labels)
            matrices.extend(counts.cpu())
        return matrices

    def _groups(
        self, clients: Sequence[int], state: ClientStack, recalibrate: bool | None = None
    ) -> Iterator[tuple[list[int], Tensors]]:
        """Yield the clients in groups, with the tensors that are tested."""
        for group in _together(clients):
            lanes = torch.tensor(group, device=self.device)
            tensors = {name: stacked[lanes] for name, stacked in state.common.items()}
            wanted = self.config.recalibrate if recalibrate is None else recalibrate
            yield group, self._recalibrated(group, tensors) if wanted else tensors

    def validation_losses(self, k: int, own: Tensors, candidates: Tensors) -> Sequence[float]:
        """Return the loss of each candidate on the held-out images in evaluation mode, computed in one pass."""
        (count,) = {len(tensor) for tensor in candidates.values()}
        models = {name: candidates.get(name, t.expand(count, *t.shape)).contiguous() for name, t in own.items()}
        group = [k] * count
        models = self._recalibrated(group, models) if self.method.recalibrates_candidates else models
        return self._test(group, models, "holdout")[0].tolist()

    def _part(self, group: Sequence[int], part: str, size: int) -> tuple[Tensor, Tensor]:
        """Return positions and labels [G, n] of a part of the clients' images, n a multiple of `size`.

        Shorter lanes are padded with label -100, which cross_entropy ignores.
        """
        for k in group:
            if (part, k) not in self.parts:
                own = getattr(self.scenario.clients[k], part)
                self.parts[part, k] = own.to(self.device), self.reference.labels(k, own)
        both = [self.parts[part, k] for k in group]
        positions = pad_sequence([own for own, _ in both], batch_first=True)
        labels = pad_sequence([right for _, right in both], batch_first=True, padding_value=-100)
        missing = -positions.shape[1] % size
        return pad(positions, (0, missing)), pad(labels, (0, missing), value=-100)

    def _test(self, group: Sequence[int], tensors: Tensors, part: str) -> tuple[Tensor, Tensor]:
        """Return each lane's mean loss on a part of its images, [G], and which are right, [G, n] with padding."""
        losses = torch.zeros(len(group), device=self.device, dtype=torch.float64)
        counts = torch.zeros(len(group), device=self.device, dtype=torch.int64)
        right = []
        for logits, own in self._outputs(group, tensors, part):
            right.append(logits.argmax(2) == own)
            losses += cross_entropy(logits.flatten(0, 1), own.reshape(-1), reduction="none").view_as(own).sum(1)
            counts += (own >= 0).sum(1)
        return losses / counts, torch.cat(right, dim=1)

    @torch.no_grad()
    def _outputs(self, group: Sequence[int], tensors: Tensors, part: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield logits [G, B, classes] and labels [G, B] of each batch in evaluation mode, lanes padded with -100."""
        self.model.eval()
        height, width = self.images.shape[2:]
        longest = max(len(getattr(self.scenario.clients[k], part)) for k in group)
        size = min(TEST_PIXELS // (height * width), few_sizes(longest))
        positions, labels = self._part(group, part, size)
        weights = self.stacked.weights(tensors)
        for first in range(0, positions.shape[1], size):
            pixels = self._plain(positions[:, first : first + size])
            yield self.stacked.logits(tensors, weights, pixels), labels[:, first : first + size]


def _together(clients: Sequence[int]) -> list[list[int]]:
    """Return the clients in groups of at most _TOGETHER."""
    return [list(clients[first : first + _TOGETHER]) for first in range(0, len(clients), _TOGETHER)]


def few_sizes(count: int) -> int:
    """Return a batch size of at least `count`, one of few, because cuDNN times its algorithms for every new size."""
    step = min(_SIZES, 1 << (count - 1).bit_length())
    return -(-count // step) * step
