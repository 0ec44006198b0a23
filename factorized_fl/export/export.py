"""Export of a client's model, checked on the client's whole test split before anything is kept."""

import importlib.util
import json
import logging
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

import safetensors.torch
import torch
from jinja2 import Environment, StrictUndefined
from torch import nn

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.core.stack import load_untied, untied_state
from factorized_fl.data.clients import OWN
from factorized_fl.export.package import ABOUT, ARCHITECTURE, CARD, ONNX, WEIGHTS, FromPixels, Package
from factorized_fl.methods import METHODS, fingerprints
from factorized_fl.nn import fold
from factorized_fl.results.effect import Effect, Verdict
from factorized_fl.results.reading import read_run
from factorized_fl.results.references import effect_beside, judge_run
from factorized_fl.results.rundir import RunDirectory, describe_clients
from factorized_fl.simulate.build import Federation, build_federation, build_scenario_of, initial_model

_BATCH = 500
_TOLERANCE = 1e-4  # of a class score, between the trained, the folded and the ONNX model
Scores = Callable[[torch.Tensor], torch.Tensor]  # raw pixels to class scores


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
    client: int = 0  # counted from 0
    effect: Effect | None = None  # of the run on all its clients, over a control or Stand-Alone, where there is one

    @property
    def accuracy(self) -> float:
        """Return the exported model's accuracy on the client's test images."""
        return self.correct / self.images

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
    run: Path, client: int, out: Path | None = None, *, data: Path | None = None, alone: Path | None = None
) -> Exported:
    """Export the model of a simulated client, numbered from 1, and compare it with the Stand-Alone run `alone`."""
    directory = RunDirectory(run)
    rounds = directory.checkpoint_round()
    if not rounds:
        raise UserError(f"'{run}' holds no checkpoint of a run: give the directory of a run.")
    config = directory.config()
    if config.has_own_model or config.dataset == OWN:
        raise UserError(
            f"'{run}' has a network or data from Python, which a package cannot describe: take the trained module "
            "there, with ffl.run(..., resume=True).model(k)."
        )
    count = len(directory.clients())
    if not 1 <= client <= count:
        wrong = f"There is no client {client}" if client else "This run has a model for every client"
        raise UserError(f"{wrong}: name one of '{run}' with --client, 1 to {count}.")
    federation = build_federation(config, build_scenario_of(config, data), torch.device("cpu"), "reference")
    directory.refuse_other_data(describe_clients(federation.scenario))
    with directory.reading_checkpoint():
        federation.load(directory.load_checkpoint())
    if not federation.server.received[client - 1]:
        raise UserError(f"Client {client} has not taken part in a round of '{run}': it has no model of its own yet.")
    effect = _measured(run, rounds, config.rounds, alone)
    name = federation.scenario.clients[client - 1].name
    trained = directory.rounds_trained(client - 1, rounds)
    out = out or run / "model" / f"client-{client}"
    return export_client(federation, client - 1, rounds, trained, out, name, effect)


def _measured(run: Path, rounds: int, planned: int, reference: Path | None) -> Effect | None:
    """Return what the run gained over a reference, or over the controls beside it and its other seeds."""
    if reference is None:
        return effect_beside(read_run(run))
    if rounds < planned:
        raise UserError(f"'{run}' has done {rounds} of {planned} rounds: let it finish first, or leave --alone out.")
    return judge_run(run, reference)


def export_client(
    federation: Federation, k: int, rounds: int, trained: int, out: Path, name: str, effect: Effect | None = None
) -> Exported:
    """Fold client k's model, compare it with the trained one on all test images, and write it to `out`.

    The client has trained in `trained` of the `rounds` rounds. `effect` is what the run gained.
    """
    config, scenario = federation.config, federation.scenario
    client = scenario.clients[k]
    channels, size = scenario.images.shape[1], scenario.images.shape[-1]
    model = initial_model(config, len(client.classes), channels, scenario.labels_agree)
    tensors = federation.engine.tested(rounds, k, federation.clients)
    load_untied(model, {key: tensor.detach().cpu() for key, tensor in tensors.items()})
    package = Package(
        name=name,
        method=config.method,
        model=config.model,
        classes=client.classes,
        image_size=size,
        channels=channels,
        mean=scenario.mean,
        std=scenario.std,
        **{option: getattr(config, option) for option in ARCHITECTURE},
    )
    images = scenario.images[client.test]
    labels = client.labelling[scenario.labels[client.test]]
    # The fingerprint describes the client's images, so it is not part of the exported model.
    folded = untied_state(fold(model.eval()))
    weights = {key: tensor.contiguous() for key, tensor in folded.items() if key != fingerprints.NAME}
    pixels = package.network(weights)
    with plain_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    wanted = _scores(FromPixels(model, package.mean, package.std).eval(), images)
    if not wanted.isfinite().all():
        raise UserError(f"The training of {name} diverged, so there is no model to export: a smaller lr may help.")
    got = _scores(pixels, images)
    difference = _compare(wanted, got, "folded")
    same = wanted.argmax(1) == got.argmax(1)
    onnx = _write_onnx(pixels, out / ONNX, channels, size)
    if onnx:
        theirs = _scores(onnx_scores(out / ONNX, package), images)
        difference = max(difference, _compare(wanted, theirs, "ONNX"))
        same &= wanted.argmax(1) == theirs.argmax(1)
    correct = int((got.argmax(1) == labels).sum())
    majority = int(labels.bincount().max()) / len(images)
    exported = Exported(out, onnx, len(images), difference, int(same.sum()), correct, majority, k, effect)
    numbers = ("accuracy", "correct", "images", "largest_difference", "same_class")
    results = {name: getattr(exported, name) for name in numbers}
    if verdict := exported.verdict:
        results |= {"reference": verdict.reference, "verdict": verdict.word, "seeds": exported.seeds}
    about = json.dumps({**asdict(package), "results": results}, indent=2, ensure_ascii=False)
    write_atomically(out / WEIGHTS, safetensors.torch.save(weights))
    write_atomically(out / ABOUT, about.encode())
    write_atomically(out / CARD, _model_card(package, config, trained, len(client.train), exported).encode())
    return exported


def onnx_scores(path: Path, package: Package) -> Scores:
    """Return the exported ONNX model as a function; raise UserError if it does not fit its description."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the exceptions of ONNX Runtime have no common base class
        raise UserError(f"The model '{path}' cannot be read ({error}): export it again.") from None

    takes, gives = session.get_inputs()[0].shape[1:], session.get_outputs()[0].shape[1:]
    size = package.image_size
    if [*takes, *gives] != [package.channels, size, size, len(package.classes)]:
        raise UserError(f"'{path.parent / ABOUT}' does not fit the model '{path}': export it again.")

    def scores(pixels: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(session.run(None, {"pixels": pixels.numpy()})[0])

    return scores


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


def _model_card(package: Package, config: Config, trained: int, train: int, exported: Exported) -> str:
    """Return the content of README.md, from the numbers of rounds and of images that the client trained with."""
    template = resources.files("factorized_fl.export").joinpath("card.md.jinja").read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)  # of Markdown
    environment.filters |= {
        "form": lambda value, form: format(value, form),
        "quote": _quote,
    }
    card = METHODS[config.method].card
    return environment.from_string(template).render(
        package=package, config=config, card=card, trained=trained, train=train, exported=exported
    )


def _quote(name: str) -> str:
    """Return a class name as a quoted text of Markdown: HTML, links and unprintable characters in it stay text."""
    printable = "".join(char if char.isprintable() else "?" for char in name)
    return json.dumps(re.sub(r"([<>&*_`\[\]|#])", lambda found: f"&#{ord(found[0])};", printable), ensure_ascii=False)


def _write_onnx(model: nn.Module, path: Path, channels: int, size: int) -> bool:
    """Write the ONNX file and return True, or warn and return False if its libraries are not installed."""
    with plain_errors(path.parent):
        path.unlink(missing_ok=True)
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")):
        warnings.warn('No ONNX file was made: pip install "factorized-fl[onnx]" for that.', stacklevel=3)
        return False
    example = torch.zeros(2, channels, size, size, dtype=torch.uint8)
    silenced = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                model,
                (example,),
                input_names=["pixels"],
                output_names=["scores"],
                dynamic_shapes={"pixels": {0: torch.export.Dim("images")}},
                dynamo=True,
                verbose=False,
            )
    finally:
        logging.disable(silenced)
    assert program is not None
    write_atomically(path, program.model_proto.SerializeToString())
    return True
