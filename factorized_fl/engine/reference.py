"""The reference engine: one client after the other in plain PyTorch, on any device. All other engines equal it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import cycle, islice

import torch
from torch import Tensor, nn

from factorized_fl.core.answers import checked_gradient, checked_payload
from factorized_fl.core.clients import ClientState
from factorized_fl.core.errors import UserError
from factorized_fl.core.frozen import training_mode
from factorized_fl.core.roles import trainable
from factorized_fl.core.seeds import global_rng, torch_rng
from factorized_fl.core.stack import call_untied
from factorized_fl.core.views import Batch, Evaluated, Local, Phase, Tensors, Trained
from factorized_fl.engine import Work
from factorized_fl.engine.looks import Penalty, features_of, head_inputs, loss_of, tuned
from factorized_fl.engine.optimizers import OptimizerUpdate, SgdUpdate, Stepper
from factorized_fl.engine.private import BudgetSpent, PrivateGradient, guarded, no_batches
from factorized_fl.engine.processor import casting, computes_in_bf16, keep_freed_memory, repeatable, takes_channels_last
from factorized_fl.engine.threads import operations, using_threads, worthwhile_threads
from factorized_fl.engine.training import clipped
from factorized_fl.tasks.confusion import count_confusion
from factorized_fl.tasks.inputs import Inputs

_EVALUATION_BATCH = 500


class ReferenceEngine:
    """Trains on the stacks in place; one model object serves all clients with the same number of classes."""

    def __init__(self, work: Work, half: bool = False) -> None:
        """`half` computes convolutions and products on a GPU in bf16; a CPU follows an option of its own."""
        keep_freed_memory()
        self.work, self.config, self.method, self.scenario = work, work.config, work.method, work.scenario
        self.roles, self.device, self.task = work.roles, work.device, work.task
        self.models = {classes: model.to(work.device) for classes, model in work.models.items()}
        self.images, self.training = self.scenario.images.to(self.device), work.training
        mean, std = (torch.tensor(side, device=self.device) for side in (self.scenario.mean, self.scenario.std))
        self.inputs = Inputs(self.images, mean, std, self.scenario.arrays, work.training.augment)
        self.inputs.channels_last = takes_channels_last(self.inputs, self.models.values())
        self.threads, self.one_by_one = torch.get_num_threads(), set[int]()
        self._weights: dict[int, Tensor | None] = {}  # weights of the classes in the loss, by client
        if self.device.type == "cpu":
            image = self.inputs.plain(torch.zeros(1, dtype=torch.int64))
            amount = self.config.batch_size * operations(next(iter(self.models.values())), image)
            self.threads, half = worthwhile_threads(amount), computes_in_bf16(self.config.cpu_precision, amount)
        self.half, self.casting = half, casting(work.device, half)

    def describe(self) -> dict[str, str | int]:
        """Returns "reference" and the precision of convolutions."""
        single = "fp32" if self.device.type != "cuda" or self.config.precision == "fp32" else "tf32"
        return {"engine": "reference", "convolutions": "bf16" if self.half else single, "threads": self.threads}

    def train(
        self, round_number: int, ks: Sequence[int], clients: ClientState, done: Callable[[int], None]
    ) -> dict[int, Trained]:
        """Trains the clients in turn."""
        results = {}
        with repeatable(), using_threads(self.threads):
            for k in ks:
                with self._seeded("torch", round_number, k):
                    results[k] = self._train_one(round_number, k, clients)
                done(k)
        return results

    def _train_one(self, round_number: int, k: int, clients: ClientState) -> Trained:
        own, losses, steps = clients.state.client(k), list[Tensor](), 0
        start = {name: own[name].clone() for name in trainable(self._model(k))}
        local = self._view(round_number, k, clients, start)
        for index, phase in enumerate(self.method.phases()):
            tensors = clients.models[phase.model].client(k) if phase.model else own
            loss_gradient, parameters = self._attach(k, tensors, losses, phase)
            found = partial(no_batches, self) if self.work.budget else self.batches
            batches = partial(found, round_number, k, phase, index)
            lr = self.config.lr * self._factor(round_number, k, steps)
            local = replace(
                local, loss_gradient=loss_gradient, tensors=tensors, phase=phase, steps=steps, batches=batches, lr=lr
            )
            average = {} if phase.model else clients.average.client(k)
            update = self._update(k, clients, phase.model, parameters)
            steps += self._train_phase(round_number, k, local, parameters, update, average)
            update.keep()
        with torch.no_grad():
            payload = self.method.finish(replace(local, tensors=own, steps=steps))
        clients.outbox[k] = checked_payload(self.method.name, "finish", payload, clients.expected_up)
        return Trained(float(torch.stack(losses).mean()), steps)

    def _update(self, k: int, clients: ClientState, model: str, parameters: Tensors) -> Stepper:
        """The client's optimiser for these parameters of its own or of a further model."""
        choice, config = self.training.optimizer, self.config
        if choice.build is None:
            buffers = (clients.momenta[model] if model else clients.momentum).client(k)
            return SgdUpdate(parameters, buffers, config.lr, config.momentum, config.weight_decay)
        own = {name: p for name, p in parameters.items() if isinstance(p, nn.Parameter)}
        return OptimizerUpdate(choice.name, choice.build, own, clients.memories[model].client(k))

    def _factor(self, round_number: int, k: int, steps: int) -> float:
        """The schedule's factor on the learning rate after so many steps of a round."""
        done = round_number - 1 + min(1.0, steps / self.work.step_count(k))
        return self.training.schedule(done / self.config.rounds)

    def _train_phase(
        self, round_number: int, k: int, local: Local, parameters: Tensors, update: Stepper, average: Tensors
    ) -> int:
        """Trains these parameters and returns the number of steps."""
        batches = local.batches()
        need, steps = self.method.batches_per_step, 0
        while step := tuple(islice(batches, need)):
            if len(step) < need:
                if steps:
                    break
                step = tuple(islice(cycle(step), need))  # too few images for even one step of distinct batches
            try:
                gradient = self.method.gradient(local, parameters, step)
            except BudgetSpent:
                break
            gradient = clipped(checked_gradient(self.method.name, gradient, parameters), self.training.clip)
            update.step(gradient, self._factor(round_number, k, local.steps + steps))
            steps += 1
            if average:
                self._average(average, parameters, local.steps + steps)
        return steps

    @torch.no_grad()
    def _average(self, average: Tensors, parameters: Tensors, steps: int) -> None:
        """Updates the mean of the weights after each step of this round; a step weighs `ema` times the next one."""
        ema = self.training.ema
        for name, parameter in parameters.items():
            average[name].lerp_(parameter, (1 - ema) / (1 - ema**steps))

    def _view(self, round_number: int, k: int, clients: ClientState, start: Tensors) -> Local:
        """The parts of a client's view that do not depend on the phase."""
        local = Local(
            loss_gradient=lambda at, batch: {},
            roles=self.roles,
            shared=self.work.shared,
            start=start,
            kept=clients.kept.client(k),
            extra={name: stacked[k] for name, stacked in clients.inbox.items()},
            models={name: stack.client(k) for name, stack in clients.models.items()},
            lr=self.config.lr,
            epoch_steps=self.work.epoch_steps(k),
            trained=frozenset(trainable(self._model(k))),  # tied ones once, frozen ones not at all
            batches=partial(self.batches, round_number, k),
            classes=len(self.scenario.clients[k].classes),
            last=round_number == self.config.rounds,
            features=partial(features_of, self, k, clients),
            loss=partial(loss_of, self, k, clients),
            tune=partial(tuned, self, round_number, k, clients),
        )
        return guarded(self.work, local)

    def _attach(
        self, k: int, tensors: Tensors, losses: list[Tensor], phase: Phase, weights: Tensor | None = None
    ) -> tuple[Callable[..., Tensors], Tensors]:
        """Returns a loss gradient on these tensors, and the parameters that train; each loss is appended to `losses`.

        The model works directly on the given tensors, so that training changes the stack. Calling it as a function of
        parameters given by name takes a millisecond more, which only gradients at other points cost.
        """
        model = training_mode(self._model(k))
        own, statistics = dict(model.named_parameters()), dict(model.named_buffers())
        for name, tensor in (own | statistics).items():
            if name in tensors:  # a buffer that is not persistent is part of the module, not of the state
                tensor.data = tensors[name]
        trains = phase.trains or (lambda role: True)
        parameters: Tensors = {n: p for n, p in own.items() if p.requires_grad and trains(self.roles[n])}
        weights = self._class_weights(k) if weights is None else weights
        if not parameters:
            raise UserError(f"{self.method.name} has a phase '{phase.name}' without any parameters.")
        if self.work.budget:
            return PrivateGradient(self, self.work.budget, k, parameters, losses), parameters

        def loss_gradient(at: Tensors, batch: Batch, penalty: Penalty | None = None) -> Tensors:
            own_values = at is parameters
            with head_inputs(model, penalty is not None) as seen, self.casting():
                outputs = model(batch.images) if own_values else call_untied(model, statistics | at, batch.images)
            loss = self.task.loss.mean(self.exact(outputs), batch.labels, weights)
            losses.append(loss.detach())
            if penalty is not None:
                loss = loss + penalty(seen[0])
            of = {name: tensor for name, tensor in at.items() if name in own}
            # A network may hold parameters that it does not use: their gradient is zero.
            gradients = torch.autograd.grad(loss, list(of.values()), allow_unused=True, materialize_grads=True)
            return dict(zip(of, gradients, strict=True))

        return loss_gradient, parameters

    def _seeded(self, purpose: str, round_number: int, k: int) -> AbstractContextManager[None]:
        """Gives dropout a stream of its own for one round and client."""
        seat = self.scenario.clients[k].draws_as(k)
        return global_rng(self.config.seed, purpose, round_number, seat, device=self.device)

    def receive(self, round_number: int, k: int, clients: ClientState, given: Tensors) -> Tensors:
        """Calls the method's hook with the threads, algorithms and seeds of training."""
        with repeatable(), using_threads(self.threads), self._seeded("receive", round_number, k):
            return self.method.receive(self._local(round_number, k, clients, clients.state.client(k)), given)

    def _local(self, round_number: int, k: int, clients: ClientState, tensors: Tensors) -> Local:
        """The view of client k for hooks outside training: the model works on copies of these tensors."""
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        loss_gradient, _ = self._attach(k, tensors, [], Phase())
        found = replace(self._view(round_number, k, clients, tensors), loss_gradient=loss_gradient, tensors=tensors)
        return guarded(self.work, found)

    @torch.no_grad()
    def _recalibrated(self, k: int, tensors: Tensors) -> Tensors:
        """The tensors with running statistics that are the mean over training batches without augmentation."""
        model = self._model(k).eval()
        norms = {n: m for n, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
        norms = {n: m for n, m in norms.items() if m.running_mean is None or f"{n}.running_mean".strip(".") in tensors}
        if not norms:
            return tensors
        share: dict[str, float] = {}  # the share of a batch's statistics that one pass puts into each buffer
        before = {name: norm.momentum for name, norm in norms.items()}
        for name, norm in norms.items():
            norm.train()
            norm.momentum = norm.momentum or 1.0  # with None or 0 one pass would not show the batch's statistics
            for leaf in ("running_mean", "running_var"):
                share[f"{name}.{leaf}" if name else leaf] = norm.momentum
        changed = {
            n: t for n, t in tensors.items() if n in share or (n.rpartition(".")[0] in norms and n.endswith("_tracked"))
        }
        totals = {name: torch.zeros_like(tensors[name]) for name in share if name in tensors}
        batches = self.work.plain_batches(k)
        for chosen in batches:
            here = tensors | {name: torch.zeros_like(tensor) for name, tensor in changed.items()}
            with self.casting():
                call_untied(model, here, self.inputs.plain(chosen))
            for name, total in totals.items():
                total.add_(here[name])
        for name, norm in norms.items():
            norm.momentum = before[name]
        return tensors | {name: total / (share[name] * len(batches)) for name, total in totals.items()}

    def batches(self, round_number: int, k: int, phase: Phase | None = None, index: int = 0) -> Iterator[Batch]:
        """The client's shuffled and augmented batches of one phase of a round."""
        seat = self.scenario.clients[k].draws_as(k)
        generator = torch_rng(self.config.seed, "augment", round_number, seat, index) if self.inputs.own else None
        for chosen, draws in self.work.batches(round_number, k, phase, index):
            yield Batch(self.inputs.augmented(chosen, draws, generator), self.labels(k, chosen))

    def evaluate(
        self,
        round_number: int,
        ks: Sequence[int],
        clients: ClientState,
        *,
        recalibrate: bool | None = None,
        part: str = "test",
    ) -> dict[int, Evaluated]:
        """Tests the clients in turn."""
        with using_threads(self.threads):
            return {
                k: self._test(
                    k, self.tested(round_number, k, clients, recalibrate), getattr(self.scenario.clients[k], part)
                )
                for k in ks
            }

    def confusion(self, round_number: int, ks: Sequence[int], clients: ClientState) -> list[Tensor]:
        """Counts for the clients in turn, each in its own order of classes."""
        matrices = []
        with using_threads(self.threads):
            for k in ks:
                client = self.scenario.clients[k]
                counts = torch.zeros(1, *[len(client.classes)] * 2, dtype=torch.int64, device=self.device)
                for logits, labels in self._outputs(k, self.tested(round_number, k, clients), client.test):
                    count_confusion(counts, logits[None], labels[None])
                matrices.append(counts[0].cpu())
        return matrices

    def tested(self, round_number: int, k: int, clients: ClientState, recalibrate: bool | None = None) -> Tensors:
        """The client's own, averaged or personal tensors, recalibrated if the option says so."""
        tested = clients.state.client(k) | clients.average.client(k)
        if self.method.personal:
            with self._seeded("tested", round_number, k):
                begun = clients.start.client(k) if self.method.keeps_start else {}
                local = self._local(round_number, k, clients, tested | begun)
                tested = local.tensors | self.method.tested(local)
        if self.config.recalibrate if recalibrate is None else recalibrate:
            with repeatable(), using_threads(self.threads):
                return self._recalibrated(k, tested)
        return tested

    def validation_losses(self, k: int, own: Tensors, candidates: Tensors) -> Sequence[float]:
        """Losses on the held-out images, in evaluation mode, one candidate after the other."""
        models = [dict(zip(candidates, tensors, strict=True)) for tensors in zip(*candidates.values(), strict=True)]
        models = [own | model for model in models]
        with using_threads(self.threads):
            if self.method.recalibrates_candidates:
                models = [self._recalibrated(k, model) for model in models]
            held = self.scenario.clients[k].holdout
            return [self._mean_loss(self._outputs(k, model, held), len(held)) for model in models]

    def _mean_loss(self, batches: Iterable[tuple[Tensor, Tensor]], count: int) -> float:
        return sum(float(self.task.loss.total(*batch)) for batch in batches) / count

    def _test(self, k: int, tensors: Tensors, positions: Tensor) -> Evaluated:
        found: list[tuple[Tensor, Tensor]] = []
        loss = 0.0
        for outputs, targets in self._outputs(k, tensors, positions):
            loss += float(self.task.loss.total(outputs, targets))
            kept = outputs.argmax(1) == targets if self.task.counts_only else outputs.float()
            found.append((kept.cpu(), targets.cpu()))
        first, targets = (torch.cat(side) for side in zip(*found, strict=True))
        if self.task.counts_only:
            return Evaluated(int(first.sum()), len(positions), loss / len(positions), first)
        return self.task.evaluated(loss / len(positions), first, targets)

    def _outputs(self, k: int, tensors: Tensors, positions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits and labels, batch by batch, in evaluation mode."""
        model = self._model(k).eval()
        for chosen in positions.split(_EVALUATION_BATCH):
            with torch.no_grad(), self.casting():
                logits = call_untied(model, tensors, self.inputs.plain(chosen))
            yield self.exact(logits), self.labels(k, chosen)

    def exact(self, outputs: Tensor) -> Tensor:
        """Returns outputs in float32, which losses and metrics need, where the network computed them in bf16."""
        return outputs.float() if self.half else outputs

    def labels(self, k: int, chosen: Tensor) -> Tensor:
        """Returns the targets of these examples: classes under the client's own labelling, or numbers."""
        return self.scenario.targets(k, chosen).to(self.device)

    def _class_weights(self, k: int) -> Tensor | None:
        """The weights of the client's classes in the loss, or None."""
        if k not in self._weights:  # no functools.cache, which would keep the engine and its data after the run
            client = self.scenario.clients[k]
            found = self.task.weights(len(client.classes), self.scenario.targets(k, client.train))
            self._weights[k] = None if found is None else found.to(self.device)
        return self._weights[k]

    def _model(self, k: int) -> nn.Module:
        return self.models[len(self.scenario.clients[k].classes)]
