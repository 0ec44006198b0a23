"""The reference engine: one client after the other in plain PyTorch, obviously right, on any device."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from factorized_fl.core.answers import gradient_of
from factorized_fl.core.stack import ClientStack
from factorized_fl.engine import Evaluated, Task, Trained
from factorized_fl.engine.batches import batches_of, plain_batches
from factorized_fl.engine.threads import using_threads, worthwhile_threads
from factorized_fl.methods import Batch, Local, Tensors
from factorized_fl.nn.models import NORM_MOMENTUM
from factorized_fl.tasks.augment import augment, normalise
from factorized_fl.tasks.confusion import count_confusion, empty_confusion

_EVALUATION_BATCH = 500


class ReferenceEngine:
    """Trains on the stack in place; one model object serves all clients with the same number of classes."""

    def __init__(self, task: Task) -> None:
        keep_freed_memory()
        self.config, self.method, self.scenario = task.config, task.method, task.scenario
        self.roles, self.shared, self.device = task.roles, task.shared, task.device
        self.models = {classes: model.to(task.device) for classes, model in task.models.items()}
        self.images = self.scenario.images.to(self.device)
        self.mean = torch.tensor(self.scenario.mean, device=self.device)
        self.std = torch.tensor(self.scenario.std, device=self.device)
        self.threads = torch.get_num_threads()
        if self.device.type == "cpu":
            image = self._ready(self.images[:1].float() / 255)
            self.threads = worthwhile_threads(next(iter(self.models.values())), image, self.config.batch_size)

    def describe(self) -> dict[str, str | int]:
        """It has no bf16: on a GPU TF32 stands in for it."""
        exact = self.device.type != "cuda" or self.config.precision == "fp32"
        return {"engine": "reference", "convolutions": "fp32" if exact else "tf32", "threads": self.threads}

    def train(
        self,
        round: int,
        clients: Sequence[int],
        state: ClientStack,
        momentum: ClientStack,
        done: Callable[[int], None],
    ) -> dict[int, Trained]:
        """Train the clients in turn."""
        results = {}
        with repeatable(), using_threads(self.threads):
            for k in clients:
                results[k] = self._train_one(round, k, state.client(k), momentum.client(k))
                done(k)
        return results

    def _train_one(self, round: int, k: int, tensors: Tensors, momentum: Tensors) -> Trained:
        losses: list[torch.Tensor] = []
        local, parameters = self._local(k, tensors, losses)
        batches = self.batches(round, k)
        need, steps = self.method.batches_per_step, 0
        while step := tuple(islice(batches, need)):
            if len(step) < need:
                if steps:
                    break
                step = tuple(islice(cycle(step), need))  # too few images for even one step of distinct batches
            gradient = gradient_of(self.method, self.method.gradient(local, parameters, step), parameters)
            self._sgd(parameters, gradient, momentum)
            steps += 1
        with torch.no_grad():
            self.method.finish(tensors, self.roles)
        if self.method.settle:
            self._settle(k, tensors)
        return Trained(float(torch.stack(losses).mean()), steps)

    def _local(self, k: int, tensors: Tensors, losses: list[torch.Tensor]) -> tuple[Local, Tensors]:
        """What the method may use in a step, and the parameters; every loss it looks at is noted in `losses`.

        The model works directly on the client's tensors, so that training changes the stack. Calling it as a function
        of parameters given by name takes a millisecond more, which only steps at other points pay.
        """
        model = self._model(k).train()
        parameters: Tensors = dict(model.named_parameters())
        statistics = dict(model.named_buffers())
        for name, tensor in (parameters | statistics).items():
            tensor.data = tensors[name]

        def loss_gradient(at: Tensors, batch: Batch) -> Tensors:
            if at is parameters:
                logits = model(batch.images)
            else:
                logits = functional_call(model, (at, statistics), (batch.images,))
            loss = cross_entropy(logits, batch.labels)
            losses.append(loss.detach())
            return dict(zip(at, torch.autograd.grad(loss, list(at.values())), strict=True))

        start = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        return Local(loss_gradient, self.roles, self.shared, start), parameters

    @torch.no_grad()
    def _settle(self, k: int, tensors: Tensors) -> None:
        """Make the running statistics the mean over batches of plain images through the weights that are tested."""
        model = self._model(k).eval()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.train()
        batches = plain_batches(self.config, self.scenario.clients[k], k)
        changed = {n: t for n, t in tensors.items() if n.endswith(("running_mean", "running_var", "_tracked"))}
        totals = {n: torch.zeros_like(t) for n, t in changed.items() if t.is_floating_point()}
        for chosen in batches:
            # From zero, a batch moves running statistics by its own times the momentum.
            here = tensors | {n: torch.zeros_like(t) for n, t in changed.items()}
            functional_call(model, here, (self._plain(chosen),))
            for name, total in totals.items():
                total.add_(here[name])
        for name, total in totals.items():
            tensors[name].copy_(total / (NORM_MOMENTUM * len(batches)))

    @torch.no_grad()
    def _sgd(self, parameters: Tensors, gradient: Tensors, momentum: Tensors) -> None:
        """SGD as PyTorch defines it: decay into the gradient, gradient into the buffer, buffer into the weight."""
        for name, parameter in parameters.items():
            decayed = gradient[name].add(parameter, alpha=self.config.weight_decay)
            momentum[name].mul_(self.config.momentum).add_(decayed)
            parameter.add_(momentum[name], alpha=-self.config.lr)

    def batches(self, round: int, k: int) -> Iterator[Batch]:
        """The client's shuffled and augmented batches of all local epochs of a round."""
        for chosen, draws in batches_of(self.config, self.method, self.scenario.clients[k], round, k):
            images = self.images[chosen.to(self.device)]
            pixels = images.float() / 255 if draws is None else augment(images, draws.to(self.device))
            yield Batch(self._ready(pixels), self._labels(k, chosen))

    def evaluate(
        self, round: int, clients: Sequence[int], state: ClientStack, start: ClientStack
    ) -> dict[int, Evaluated]:
        """Test the clients in turn."""
        with using_threads(self.threads):
            return {
                k: self._test(k, self.tested(round, k, state, start), self.scenario.clients[k].test) for k in clients
            }

    def confusion(
        self, round: int, clients: Sequence[int], state: ClientStack, start: ClientStack
    ) -> list[torch.Tensor]:
        """Count for the clients in turn, each in its own order of classes."""
        with using_threads(self.threads):
            return [self._confusion(k, self.tested(round, k, state, start)) for k in clients]

    def _confusion(self, k: int, tensors: Tensors) -> torch.Tensor:
        client = self.scenario.clients[k]
        counts = empty_confusion(1, len(client.classes), self.device)
        for logits, labels in self._outputs(k, tensors, client.test):
            count_confusion(counts, logits[None], labels[None])
        return counts[0].cpu()

    def tested(self, round: int, k: int, state: ClientStack, start: ClientStack) -> Tensors:
        """The client's own tensors, or what the method makes of the round's start."""
        if not self.method.tests_start:
            return state.client(k)
        return self._adapted(round, k, state.client(k) | start.client(k))

    def _adapted(self, round: int, k: int, tensors: Tensors) -> Tensors:
        """The tensors that a method makes of a round's start with one training batch; nothing is changed by it."""
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        local, parameters = self._local(k, tensors, [])
        adapted = tensors | self.method.adapt(local, parameters, next(self.batches(round, k)))
        if self.method.settle:
            self._settle(k, adapted)
        return adapted

    def validation_losses(self, client: int, own: Tensors, candidates: Tensors) -> Sequence[float]:
        """Losses on the held-out images, in evaluation mode, one candidate after the other."""
        models = [dict(zip(candidates, tensors, strict=True)) for tensors in zip(*candidates.values(), strict=True)]
        with using_threads(self.threads):
            return [self._test(client, own | model, self.scenario.clients[client].holdout).loss for model in models]

    def _test(self, k: int, tensors: Tensors, positions: torch.Tensor) -> Evaluated:
        correct, loss = 0, 0.0
        for logits, labels in self._outputs(k, tensors, positions):
            correct += int((logits.argmax(1) == labels).sum())
            loss += float(cross_entropy(logits, labels, reduction="sum"))
        return Evaluated(correct, len(positions), loss / len(positions))

    def _outputs(
        self, k: int, tensors: Tensors, positions: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Logits and labels, batch by batch, in evaluation mode."""
        model = self._model(k).eval()
        for chosen in positions.split(_EVALUATION_BATCH):
            with torch.no_grad():
                logits = functional_call(model, tensors, (self._plain(chosen),))
            yield logits, self._labels(k, chosen)

    def _plain(self, chosen: torch.Tensor) -> torch.Tensor:
        """Images as they are tested: not augmented."""
        return self._ready(self.images[chosen.to(self.device)].float() / 255)

    def _ready(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalised, and channels last: 1.4 times as fast a step of ResNet-9 on a CPU."""
        return normalise(pixels, self.mean, self.std).contiguous(memory_format=torch.channels_last)

    def _labels(self, k: int, chosen: torch.Tensor) -> torch.Tensor:
        """The images' classes under the client's own labelling."""
        return self.scenario.clients[k].labelling[self.scenario.labels[chosen]].to(self.device)

    def _model(self, k: int) -> nn.Module:
        return self.models[len(self.scenario.clients[k].classes)]


@contextmanager
def repeatable() -> Iterator[None]:
    """On a GPU, only algorithms that add up in the same order every time."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


def keep_freed_memory() -> None:
    """Ask glibc not to hand memory back to the kernel after every step: page faults cost a fifth of a CPU step."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD
    except (OSError, AttributeError):
        pass  # another C library: slower, nothing else
