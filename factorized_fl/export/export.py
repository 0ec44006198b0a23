"""Export of a client's model, checked on the client's whole test split before anything is kept."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.core.named import NOTHING, Brought
from factorized_fl.core.stack import load_untied, untied_state
from factorized_fl.data.clients import OWN
from factorized_fl.data.scenarios import Scenario
from factorized_fl.export.card import model_card
from factorized_fl.export.clinical_report import (
    clinical_report,
    write_clinical,
)
from factorized_fl.export.onnx import Scores, onnx_scores, warn_without_onnx, write_onnx
from factorized_fl.export.package import (
    ABOUT,
    ARCHITECTURE,
    CARD,
    CLASSES,
    LABELS,
    NUMBERS,
    ONNX,
    PIXELS,
    TOKENS,
    VALUES,
    WEIGHTS,
    Package,
)
from factorized_fl.methods import fingerprints
from factorized_fl.nn import fold
from factorized_fl.nn.installed import find_installed
from factorized_fl.nn.models import MODELS
from factorized_fl.nn.own import Factory, import_factory
from factorized_fl.results.audited import audit_sentences, read_audit
from factorized_fl.results.effect import Effect, Verdict
from factorized_fl.results.reading import read_run
from factorized_fl.results.references import effect_beside, judge_run
from factorized_fl.results.rundir import RunDirectory, describe_clients
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.networks import initial_models
from factorized_fl.simulate.scenario import build_scenario_of
from factorized_fl.tasks.clinical import ClinicalMetrics, clinical_metrics
from factorized_fl.tasks.metrics import METRICS
from factorized_fl.tasks.task import kind_of

_BATCH = 500
_TOLERANCE = 1e-4  # largest difference of a class score between the trained, the folded and the ONNX model


@dataclass(frozen=True)
class Exported:
    """The exported folder and the results of its check on the test split."""

    folder: Path
    onnx: bool
    images: int
    largest_difference: float  # of any class score
    same_class: int  # images that all forms of the model classify alike
    correct: int
    majority: float  # share of the largest class among the test images
    client: int = 1  # numbered from 1
    effect: Effect | None = None  # of the run on all its clients, over a control or Stand-Alone, where there is one
    epsilon: float | None = None  # that differentially private training spent
    values: Mapping[str, float] = field(default_factory=dict)  # metrics of a model that gives labels or numbers

    @property
    def accuracy(self) -> float:
        """Return the exported classifier's accuracy on the client's test images."""
        return self.correct / self.images

    @property
    def words(self) -> str:
        """Return how good the model is on the client's test examples."""
        if self.values:
            return ", ".join(f"{name} {value:.4g}" for name, value in self.values.items())
        return f"accuracy {100 * self.accuracy:.2f}%"

    @property
    def verdict(self) -> Verdict | None:
        """Return the verdict on this client, where there is a reference."""
        return next((v for v in self.effect.clients if v.client == self.client), None) if self.effect else None

    @property
    def seeds(self) -> int:
        """Return the number of seeds that the verdict is from."""
        return self.effect.seeds if self.effect else 0

    @property
    def at_chance(self) -> bool:
        """Return whether always answering the largest class would be as good, within two standard errors."""
        share = self.majority
        return self.accuracy <= share + 2 * math.sqrt(share * (1 - share) / self.images)


def export_run(
    run: Path,
    client: int,
    out: Path | None = None,
    *,
    data: Path | None = None,
    alone: Path | None = None,
    scenario: Scenario | None = None,
    factory: Factory | None = None,
    brought: Brought = NOTHING,
) -> Exported:
    """Export the model of a simulated client, numbered from 1, and compare it with the Stand-Alone run `alone`.

    `scenario`, `factory` and `brought` are the data, the network and the functions that a caller brought from Python.
    """
    directory = RunDirectory(run)
    rounds = directory.checkpoint_round()
    if not rounds:
        raise UserError(f"'{run}' holds no checkpoint of a run: give the directory of a run.")
    config = directory.config()
    if config.dataset == OWN and scenario is None:
        raise UserError(
            f"'{run}' has data from Python: export there, with ffl.export(ffl.run(..., resume=True), client=1)."
        )
    count = len(directory.clients())
    if not 1 <= client <= count:
        wrong = f"There is no client {client}" if client else "This run has a model for every client"
        raise UserError(f"{wrong}: name one of '{run}' with --client, 1 to {count}.")
    scenario, place = scenario or build_scenario_of(config, data), torch.device("cpu")
    federation = build_federation(config, scenario, place, "reference", factory=factory, brought=brought)
    directory.refuse_other_data(describe_clients(federation.scenario))
    with directory.reading_checkpoint():
        federation.load(directory.load_checkpoint())
    if not federation.server.received[client - 1]:
        raise UserError(f"Client {client} has not taken part in a round of '{run}': it has no model of its own yet.")
    effect = _measured(run, rounds, config.rounds, alone)
    name = federation.scenario.clients[client - 1].name
    trained = directory.rounds_trained(client - 1, rounds)
    out = out or run / "model" / f"client-{client}"
    found = read_audit(directory)
    audited = audit_sentences(found) if found else ()
    return export_client(federation, client - 1, rounds, trained, out, name, effect, factory, audited=audited)


def _measured(run: Path, rounds: int, planned: int, reference: Path | None) -> Effect | None:
    """Return the gain of the run over a reference, or over the controls beside it and its other seeds."""
    if reference is None:
        return effect_beside(read_run(run))
    if rounds < planned:
        raise UserError(f"'{run}' has done {rounds} of {planned} rounds: let it finish first, or leave --alone out.")
    return judge_run(run, reference)


def export_client(
    federation: Federation,
    k: int,
    rounds: int,
    trained: int,
    out: Path,
    name: str,
    effect: Effect | None = None,
    factory: Factory | None = None,
    shared: str = "",
    subgroups: Mapping[str, Sequence[str]] | None = None,
    window: str = "",
    audited: Sequence[str] = (),
) -> Exported:
    """Fold client k's model, compare it with the trained one on all test images, and write it to `out`.

    The client has trained in `trained` of the `rounds` rounds. `effect` is the gain of the run. `subgroups` has, by
    column, the value of each test image; `window` is the window of images with more than 8 bits. `audited`
    are the sentences of an audit.
    """
    config, scenario = federation.config, federation.scenario
    client = scenario.clients[k]
    model = _trained(federation, k, rounds, factory)
    package = replace(_package(federation, k, name), window=window)
    images = scenario.images[client.test]
    labels = scenario.targets(k, client.test)
    # The fingerprint describes the client's images, so it is not part of the exported model.
    folded = untied_state(fold(model.eval()))
    weights = {key: tensor.contiguous() for key, tensor in folded.items() if key != fingerprints.NAME}
    made = (factory or import_factory(config.model)) if config.has_own_model else None
    network = package.network(weights, made)
    with plain_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    wanted = _scores(package.prepared(model).eval(), images)
    if not wanted.isfinite().all():
        raise UserError(f"The training of {name} diverged, so there is no model to export: a smaller lr may help.")
    got = _scores(network, images)
    difference = _compare(wanted, got, "folded")
    same = wanted.argmax(1) == got.argmax(1)
    onnx = write_onnx(network, out / ONNX, package)
    if onnx and (theirs := _scores_of_onnx(out / ONNX, package, images, wanted)) is not None:
        difference = max(difference, float((wanted - theirs).abs().max()))
        same &= wanted.argmax(1) == theirs.argmax(1)
    onnx = (out / ONNX).exists()
    checked = (out, onnx, len(images), difference)
    results: dict[str, Any]
    if package.targets == CLASSES:
        correct = int((got.argmax(1) == labels).sum())
        majority = int(labels.bincount().max()) / len(images)
        exported = Exported(*checked, int(same.sum()), correct, majority, k + 1, effect)
        numbers = ("accuracy", "correct", "images", "largest_difference", "same_class")
        results = {name: getattr(exported, name) for name in numbers}
    else:
        measured = {name: metric.compute(got, labels) for name, metric in METRICS[package.targets].items()}
        exported = Exported(*checked, len(images), 0, 0.0, k + 1, effect, values=measured)
        known = {name: value if math.isfinite(value) else None for name, value in measured.items()}
        results = {"metrics": known, "images": len(images), "largest_difference": difference}
    exported = replace(exported, epsilon=federation.spent(k).get("epsilon"))
    if verdict := exported.verdict:
        results |= {"reference": verdict.reference, "verdict": verdict.word, "seeds": exported.seeds}
    if exported.epsilon is not None:
        results |= {"epsilon": exported.epsilon, "delta": config.privacy_delta}
    about = json.dumps({**asdict(package), "results": results}, indent=2, ensure_ascii=False)
    write_atomically(out / WEIGHTS, safetensors.torch.save(weights))
    write_atomically(out / ABOUT, about.encode())
    clinical = None
    if package.targets == CLASSES:
        clinical = clinical_report(got, labels, package.classes, subgroups=subgroups)
        write_clinical(clinical, out)
    card = model_card(package, config, trained, len(client.train), exported, shared, clinical, audited)
    write_atomically(out / CARD, card.encode())
    return exported


def _trained(federation: Federation, k: int, rounds: int, factory: Factory | None = None) -> nn.Module:
    """Return client k's network as it is tested after so many rounds."""
    classes = len(federation.scenario.clients[k].classes)
    model = initial_models(federation.config, federation.scenario, factory)[classes]
    tensors = federation.engine.tested(rounds, k, federation.clients)
    load_untied(model, {key: tensor.detach().cpu() for key, tensor in tensors.items()})
    return model.eval()


def measure_client(federation: Federation, k: int, rounds: int) -> ClinicalMetrics:
    """Return the clinical metrics of client k's model on its test images; its targets must be classes."""
    scenario, positions = federation.scenario, federation.scenario.clients[k].test
    package = _package(federation, k, scenario.clients[k].name)
    scores = _scores(package.prepared(_trained(federation, k, rounds)).eval(), scenario.images[positions])
    return clinical_metrics(scores.double().softmax(1).numpy(), scenario.targets(k, positions).numpy())


def _package(federation: Federation, k: int, name: str) -> Package:
    """Return the description of client k's model."""
    config, scenario = federation.config, federation.scenario
    images = scenario.images
    kind = PIXELS if not scenario.arrays else NUMBERS if images.is_floating_point() else TOKENS
    square = kind == PIXELS and images.shape[-1] == images.shape[-2]
    package = version = ""
    if config.has_own_model:
        with suppress(UserError):  # a network that no installed package declares is given to `load_network`
            found = find_installed(config.model)
            package, version = found.package, found.version
    return Package(
        name=name,
        method=config.method,
        model=config.model,
        classes=scenario.clients[k].classes,
        image_size=images.shape[-1] if kind == PIXELS else 0,
        channels=images.shape[1] if kind == PIXELS else 0,
        mean=scenario.mean,
        std=scenario.std,
        **{option: getattr(config, option) for option in ARCHITECTURE},
        package=package,
        version=version,
        inputs=kind,
        shape=() if square else tuple(images.shape[1:]),
        targets=_targets(config, scenario),
    )


def _targets(config: Config, scenario: Scenario) -> str:
    """Return the kind of outputs of a run's networks: classes, labels or numbers."""
    kind = kind_of(scenario.labels)
    return VALUES if kind == LABELS and config.loss == "squared-error" else kind


def _scores_of_onnx(path: Path, package: Package, inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor | None:
    """Return the ONNX model's scores; remove the file, warn and return None if they are not the wanted ones."""
    try:
        got = _scores(onnx_scores(path, package), inputs)
        _compare(wanted, got, "ONNX")
        return got
    except Exception as error:  # ONNX Runtime may raise any error for operations that it cannot compute
        if package.model in MODELS:
            raise
        path.unlink()
        warn_without_onnx(package, error)
        return None


@torch.no_grad()
def _scores(model: Scores, images: torch.Tensor) -> torch.Tensor:
    return torch.cat([model(batch) for batch in images.split(_BATCH)])


def _compare(wanted: torch.Tensor, got: torch.Tensor, what: str) -> float:
    """Return the largest difference of any score; raise UserError if it exceeds rounding."""
    largest = float((wanted - got).abs().max())
    tolerance = _TOLERANCE * max(1.0, float(wanted.abs().max()) / 10)  # float32 keeps seven digits
    if not math.isfinite(largest) or largest > tolerance:
        raise UserError(
            f"The {what} model's class scores differ from the trained model's by {largest:g}: not exported."
        )
    return largest
