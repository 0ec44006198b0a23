"""The model card, README.md of an exported model: its architecture, its training, its accuracy, its usage."""

import json
from collections.abc import Mapping
from importlib import resources

from jinja2 import Environment, StrictUndefined

from factorized_fl.config import Config
from factorized_fl.export.package import Package
from factorized_fl.methods import METHODS
from factorized_fl.results.comparison import Verdict

_ONNX = """
    # In ONNX Runtime:
    import onnxruntime
    (scores,) = onnxruntime.InferenceSession("model.onnx").run(None, {"pixels": pixels})
"""


def model_card(
    package: Package,
    config: Config,
    trained: int,
    counts: Mapping[str, int],
    correct: int,
    total: int,
    verdict: Verdict | None,
    difference: float,
    onnx: bool,
) -> str:
    """Return the model card as Markdown.

    `trained` is the number of rounds in which the client trained, `counts` the sizes of its splits, `difference` the
    largest difference of any class score between the trained and the exported model.
    """
    method = METHODS[config.method]
    template = resources.files("factorized_fl.export").joinpath("card.md.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=False, undefined=StrictUndefined, keep_trailing_newline=True)  # Markdown
    return environment.from_string(template).render(
        package=package,
        title=method.card.title,
        paper=method.card.paper,
        width=f"{config.width:g}",
        names=", ".join(json.dumps(name, ensure_ascii=False) for name in package.classes),  # they may hold commas
        rounds=f"{trained}" if trained == config.rounds else f"{trained} of {config.rounds}",
        epochs=config.epochs,
        clients=config.clients,
        train=f"{counts['train']:,}",
        split=config.score,
        accuracy=f"{100 * correct / total:.2f}%",
        correct=f"{correct:,}",
        total=f"{total:,}",
        alone=_comparison_with_alone(verdict),
        onnx_usage=_ONNX if onnx else "",
        colour="grey" if package.channels == 1 else "colour (RGB)",
        mean=_numbers(package.mean),
        std=_numbers(package.std),
        files="`model.safetensors` (PyTorch, dense)" + (" and `model.onnx` (raw pixels to scores)" if onnx else ""),
        difference=f"{difference:.1e}",
    )


def _comparison_with_alone(verdict: Verdict | None) -> str:
    if verdict is None:
        return "- It has not been compared with a model that was trained alone."
    word = {"helped": "the federation helped", "harmed": "the federation harmed"}.get(verdict.word)
    return (
        f"- A model trained alone, on the same images and for as many rounds: {100 * verdict.alone:.2f}%. "
        f"Difference {100 * verdict.difference:+.2f} points, standard error {100 * verdict.error:.2f}: "
        f"{word or 'no difference that this test could show'}."
    )


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)
