"""From a configuration to a federation at its start: scenario, method, models, stacked state, engine."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from factorized_fl.config import Config
from factorized_fl.core.classes import with_room
from factorized_fl.core.clients import ClientState, Engine
from factorized_fl.core.disk import DiskStack
from factorized_fl.core.frozen import mark_of_frozen
from factorized_fl.core.named import NOTHING, Brought
from factorized_fl.core.roles import Role, trainable
from factorized_fl.core.seeds import torch_rng
from factorized_fl.core.server import ServerState
from factorized_fl.core.stack import ClientStack, client_state
from factorized_fl.core.views import Tensors
from factorized_fl.data.scenarios import Scenario
from factorized_fl.engine import Work
from factorized_fl.engine.choice import build_engine
from factorized_fl.methods import Method, fingerprints
from factorized_fl.nn.own import Factory
from factorized_fl.protect.budget import Budget, release_noise
from factorized_fl.protect.client import Sealer
from factorized_fl.protect.draws import Draws
from factorized_fl.protect.packing import Layout
from factorized_fl.protect.server import BlindSums
from factorized_fl.simulate.alignment import Alignment, dense_rows, described_classes, find_alignment
from factorized_fl.simulate.encryption import refuse_extra_payloads, simulated_sealer
from factorized_fl.simulate.features import with_features
from factorized_fl.simulate.networks import initial_models, model_inputs, refuse_nothing_shared, travelling
from factorized_fl.simulate.population import Population, PopulationServer, on_disk
from factorized_fl.simulate.private import budget_of
from factorized_fl.simulate.ranks import ALONE, RankedClients, RankedEngine, Ranks, pin
from factorized_fl.simulate.scenario import build_scenario_of, scenario_for
from factorized_fl.simulate.separate import SeparateServers, separate_clients
from factorized_fl.simulate.training import task_of, training_of, try_augmentation


@dataclass
class Federation:
    """The objects of a run in memory, built from the configuration; a checkpoint restores their tensors."""

    config: Config
    scenario: Scenario
    method: Method
    roles: dict[str, Role]
    shared: frozenset[str]
    clients: ClientState
    server: ServerState | SeparateServers
    engine: Engine
    work: Work
    sealer: Sealer | None = None  # encrypts what the clients send, and decrypts what they receive
    frozen: str = ""  # a digest of the frozen part of the network
    last_round: int = 0  # a callback may end a run early; 0: as configured

    def __post_init__(self) -> None:
        self.last_round = self.last_round or self.config.rounds

    def parameters(self) -> tuple[dict[str, int], int]:
        """The numbers of the first client's model by role, and how many of them are shared."""
        tensors, counts = self.clients.state.client(0), Counter[str]()
        for name, role in self.roles.items():
            if tensors[name].dim():  # a step counter is not a parameter
                counts[role.kind] += tensors[name].numel()
        return dict(counts), sum(tensors[name].numel() for name in self.shared)

    @property
    def budget(self) -> Budget | None:
        """The spent privacy budget; None without differential privacy."""
        return self.work.budget

    def spent(self, k: int) -> dict[str, float]:
        """Epsilon that client k has spent, as an entry of its metrics; empty without differential privacy."""
        return {} if self.budget is None else {"epsilon": round(self.budget.spent(k), 6)}

    @property
    def tensors(self) -> Tensors:
        """All tensors that change from round to round, under distinct names."""
        own = {} if self.sealer is None else {"sealer/seen": self.sealer.seen}
        own |= {} if self.budget is None else self.budget.tensors
        return self.clients.tensors | self.server.tensors | own

    def encryption_seconds(self) -> dict[str, float]:
        """Returns the seconds of encryption, decryption and sums since the last call; empty without encryption."""
        found: dict[str, float] = {}
        blind = self.server.blind if isinstance(self.server, ServerState) else None
        for part in (self.sealer, blind):
            if part is not None:
                found |= {f"{what}_seconds": spent for what, spent in part.seconds.items()}
                part.seconds.update(dict.fromkeys(part.seconds, 0.0))
        return found

    def load(self, tensors: Tensors) -> None:
        """Restores a checkpoint; fingerprints are computed again from the clients' tensors."""
        # Checkpoints of earlier versions hold only `received`: in a simulation, the clients that have trained.
        self.clients.load({"trained": tensors["received"]} | tensors)
        self.server.load(tensors)
        if self.sealer is not None:
            self.sealer.seen.copy_(tensors["sealer/seen"])
        if self.budget is not None:
            self.budget.load(tensors)
        if self.server.vectors is not None:
            for k in self.server.received.nonzero().flatten().tolist():
                vector = self.method.fingerprint(self.clients.state.client(k), self.roles)
                assert vector is not None
                self.server.vectors[k] = vector


def _networks(
    config: Config, method: Method, scenario: Scenario, factory: Factory | None
) -> tuple[dict[int, nn.Module], Alignment | None, dict[str, Role], frozenset[str]]:
    """The initial network for each number of classes, how rows are shared by class, all roles, and what travels."""
    models = initial_models(config, scenario, factory)
    alignment = find_alignment(config, method, models, scenario)
    role_of, names = travelling(method, next(iter(models.values())), scenario.labels_agree, alignment)
    if not alignment:
        refuse_nothing_shared(config, method, frozenset(names), scenario.labels_agree)
    return models, alignment, role_of, frozenset(names)


def refuse_unusable(configs: Sequence[Config], data: Path | None) -> None:
    """Raise UserError if a method of one of the runs cannot use the clients' labels, targets or network.

    The runs have the same clients, but for their seeds. All methods can use the package's own networks.
    """
    scenario, checked = None, set[str]()
    for config in configs:
        method = config.build_method()
        if config.method in checked or not (config.has_own_model or method.needs_agreeing_labels):
            continue
        checked.add(config.method)
        scenario = scenario or build_scenario_of(config, data)
        fitting = scenario_for(method, config, scenario)
        if config.has_own_model:
            models, _, role_of, shared = _networks(config, method, fitting, None)
            tensors = client_state(next(iter(models.values())))
            method.extra_up(tensors, shared, role_of)
            method.fingerprint(tensors, role_of)


def build_federation(
    config: Config,
    scenario: Scenario,
    device: torch.device,
    engine: str = "auto",
    noise_seed: int | None = None,
    factory: Factory | None = None,
    ranks: Ranks = ALONE,
    brought: Brought = NOTHING,
    simulated: bool = True,
) -> Federation:
    """All clients at their common start; `engine` is "reference" or "auto", the fastest that supports the run.

    `noise_seed` is a private seed for noise on fingerprints: the run's public seed would let others subtract the noise.
    `factory` makes the network where the configuration names one that cannot be imported; `brought` holds other
    functions of the caller by option. `ranks` are the processes that run this federation together. Only a `simulated`
    federation has an encrypted aggregation of its own: organisations make their secret themselves.
    """
    if device.index is not None:  # a GPU with a number; kernels and streams of the fast engine use the current GPU
        torch.cuda.set_device(device)
    method = config.build_method()
    scenario = scenario_for(method, config, scenario)
    task, training = task_of(config, scenario, brought), training_of(config, brought)
    try_augmentation(training, scenario)
    models, alignment, role_of, shared = _networks(config, method, scenario, factory)
    initial = {classes: client_state(model) for classes, model in models.items()}
    disk = on_disk(config, len(scenario.clients), next(iter(initial.values())), device, ranks.size)
    kinds = [len(client.classes) for client in scenario.clients]
    state = DiskStack(initial, kinds) if disk else ClientStack.of([initial[kind] for kind in kinds])
    model = next(iter(models.values()))
    if not isinstance(state, DiskStack):
        state = ClientStack(
            {name: t.to(device) for name, t in state.common.items()},
            [{name: t.to(device) for name, t in own.items()} for own in state.own],
        )
    # Every client begins with these; a fingerprint of images is not known to the server before the first update.
    common = {name: state.begun(name)[0].clone() for name in state.common}
    seed = config.seed if noise_seed is None else noise_seed

    def look(k: int) -> None:
        _fingerprint_images(seed, config, method, scenario, models, state, k)

    if method.looks_at_images and not disk:
        for k in range(len(state)):
            look(k)
    described: Tensors = {}
    if alignment:
        described = described_classes(alignment, scenario, partial(model_inputs, scenario), seed)
    layouts = {classes: training.optimizer.layout(model.to(device)) for classes, model in models.items()}
    # Payloads with a row for each class are described by the classifier, whose shape may differ between clients.
    known = common | state.own[0] if method.class_payloads else common
    room = 0 if scenario.labels_agree else config.align_classes or max(len(each.classes) for each in scenario.clients)
    extra_up, extra_down = (
        with_room(hook(known, shared, role_of), method.class_payloads, room)
        for hook in (method.extra_up, method.extra_down)
    )
    kept: Sequence[Tensors] | ClientStack = (
        [method.keeps(state.client(k), shared) for k in range(len(state))] if not disk else ()
    )
    memory: Sequence[Tensors] | ClientStack = [layouts[kind] for kind in kinds] if training.optimizer.build else ()
    if disk:
        kept = DiskStack({kind: method.keeps(own, shared) for kind, own in initial.items()}, kinds)
        memory = DiskStack(layouts, kinds) if training.optimizer.build else ()
    clients = (Population if disk else RankedClients if ranks.size > 1 else ClientState)(
        method,
        role_of,
        shared,
        state=state,
        trained=trainable(model) if training.optimizer.build is None else (),
        memory=memory,
        averages=trainable(model) if config.ema else (),
        started=set(role_of) if method.keeps_start else shared if method.needs_start else set(),
        reset=[name for name, role in role_of.items() if scenario.labels_agree and method.resets(role)],
        kept=kept,
        models=method.further_models,
        extra_up=extra_up,
        extra_down=extra_down,
        classes=alignment.rows if alignment else None,
        class_down=alignment.down(state.client(0)) if alignment else None,
        described=described,
        dense_rows=dense_rows(models) if alignment and config.align == "classifier" else None,
    )

    if isinstance(clients, Population) and method.looks_at_images:
        clients.look = look
    templates = {name: tensor for name, tensor in common.items() if name in shared}
    encrypted = simulated and config.encrypts and bool(templates)
    if encrypted:
        refuse_extra_payloads(clients)
    blind = BlindSums(Layout(templates)) if encrypted else None

    def server_of(ks: slice) -> ServerState:
        made = partial(PopulationServer, clients=clients) if isinstance(clients, Population) else ServerState
        return made(
            method,
            role_of,
            seed=config.seed,
            stack={name: stacked[ks] for name, stacked in state.common.items() if name in shared},
            initial=common | state.own[0],
            sizes=scenario.sizes[ks],
            start={name: stacked[ks] for name, stacked in clients.start.common.items()},
            aliased=blind is None,
            classes=alignment.sharing() if alignment else None,
            room=room,
            min_peers=config.min_peers,
            robust=config.robust,
            blind=blind,
            forgets=config.stale == "forget",
        )

    apart = separate_clients(config, scenario)
    servers = [server_of(slice(ks.start, ks.stop)) for ks in apart]
    server = SeparateServers(servers, apart) if apart else server_of(slice(None))
    sealer = simulated_sealer(config, templates) if encrypted else None
    trained, rest = (scenario, models)
    if config.has_own_model and config.augment == "none":
        trained, rest = with_features(scenario, models, partial(model_inputs, scenario), device)
    work = Work(config, method, trained, rest, role_of, shared, device, task, training)
    work = replace(work, budget=budget_of(work, seed))
    built = build_engine(engine, work)
    if isinstance(clients, RankedClients):
        clients.pin(ranks, pin([len(client.train) for client in scenario.clients], ranks.size))
        built = RankedEngine(built, clients)
    frozen = mark_of_frozen(model)
    return Federation(config, scenario, method, role_of, shared, clients, server, built, work, sealer, frozen)


def _fingerprint_images(
    seed: int,
    config: Config,
    method: Method,
    scenario: Scenario,
    models: Mapping[int, nn.Module],
    state: ClientStack,
    k: int,
) -> None:
    """Fills in the fingerprint of a client's training images."""
    client, tensors = scenario.clients[k], state.client(k)
    device = tensors[fingerprints.NAME].device
    images = model_inputs(scenario, scenario.images[client.train].to(device))
    if config.privacy_epsilon:
        noise = release_noise(config.privacy_epsilon, config.privacy_delta)
        draws = Draws(seed, "release", client.draws_as(k))
        found = method.look_privately(
            models[len(client.classes)], tensors, images, noise, partial(draws.normal, "noise")
        )
        tensors[fingerprints.NAME].copy_(found)
        return
    labels = scenario.targets(k, client.train).to(device)
    classes = len(client.classes)
    if labels.is_floating_point():  # no classes whose means could be compared
        labels, classes = torch.zeros_like(labels[:, 0], dtype=torch.int64), 1
    found = method.look(models[len(client.classes)], tensors, images, labels, classes)
    generator = torch_rng(seed, "fingerprint", client.draws_as(k))
    tensors[fingerprints.NAME].copy_(method.hide(found, generator))
