"""The model card of an exported folder: README.md."""

import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

from factorized_fl.config import Config
from factorized_fl.export.clinical_report import ClinicalReport, rows_by_class, rows_by_group, rows_overall
from factorized_fl.export.package import CLASSES, INPUTS, PIXELS, Package
from factorized_fl.methods import METHODS
from factorized_fl.nn.models import MODELS

if TYPE_CHECKING:
    from factorized_fl.export.export import Exported


def model_card(
    package: Package,
    config: Config,
    trained: int,
    train: int,
    exported: "Exported",
    shared: str,
    clinical: ClinicalReport | None,
    audited: Sequence[str] = (),
) -> str:
    """Return the content of README.md, from the numbers of rounds and of images that the client trained with."""
    from jinja2 import Environment, StrictUndefined  # imported here because runs load this module and write no card

    file = "card.md.jinja" if package.targets == CLASSES else "values.md.jinja"
    template = resources.files("factorized_fl.export").joinpath(file).read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)  # of Markdown
    environment.filters |= {
        "form": lambda value, form: format(value, form),
        "quote": _quote,
        "text": _text,
    }
    card = METHODS[config.method].card
    return environment.from_string(template).render(
        package=package,
        config=config,
        card=card,
        trained=trained,
        train=train,
        exported=exported,
        built_in=package.model in MODELS,
        shared=shared,
        audited=audited,
        **({} if clinical is None else _tables(clinical)),
        name=PIXELS if package.inputs == PIXELS else "inputs",
        dtype=str(INPUTS[package.inputs]).removeprefix("torch."),
    )


def _tables(clinical: ClinicalReport) -> dict[str, object]:
    """Return the tables of metrics in the card of a classifier."""
    return {
        "threshold": clinical.whole.threshold,
        "overall": rows_overall(clinical),
        "by_class": rows_by_class(clinical),
        "by_group": rows_by_group(clinical),
        "warnings": clinical.warnings,
    }


def _quote(name: str) -> str:
    """Return a class name as a quoted text of Markdown: HTML, links and unprintable characters in it stay text."""
    return json.dumps(_text(name), ensure_ascii=False)


def _text(words: str) -> str:
    """Return words as text of Markdown: HTML, links and unprintable characters in it stay text."""
    printable = "".join(char if char.isprintable() else "?" for char in words)
    return re.sub(r"([<>&*_`\[\]|#])", lambda found: f"&#{ord(found[0])};", printable)
