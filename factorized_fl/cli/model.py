"""Commands about a model to take away: export, predict."""

import json
from pathlib import Path
from typing import Annotated

import typer

from factorized_fl.cli.common import Data, console, notes
from factorized_fl.core.errors import UserError
from factorized_fl.export.export import Exported, export_run
from factorized_fl.export.predict import predict as predict_images
from factorized_fl.report.progress import images_told
from factorized_fl.silo.plan import FEDERATION, read_kit
from factorized_fl.silo.settings import read_settings
from factorized_fl.silo.site import export_now


def print_exported(exported: Exported) -> None:
    """In three lines: where it is, how good it is, whether training together helped."""
    console.print(
        f"{exported.folder}: {100 * exported.accuracy:.2f}% of {exported.images:,} images right; "
        f"scores equal the trained model's to {exported.largest_difference:.1e}"
        f"{', as ONNX too' if exported.onnx else ''}",
        highlight=False,
        soft_wrap=True,
    )
    if exported.verdict:
        console.print(f"Alone: {100 * exported.verdict.alone:.2f}%. Verdict: {exported.verdict.word}.", highlight=False)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN|KIT", help="The directory of a run, or a site's kit.")],
    client: Annotated[int, typer.Option("--client", "-k", help="Of a run: whose model, counted from 1.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Where to; default: RUN/model/client-K.")] = None,
    data: Data = None,
    alone: Annotated[Path | None, typer.Option("--alone", help="A Stand-Alone run, for the verdict.")] = None,
) -> None:
    """Take a client's model away: dense weights, ONNX, class names, preprocessing, a model card."""
    if (run / FEDERATION).is_file():
        kit = read_kit(run)
        if kit.is_coordinator:
            raise UserError(f"'{run}' is the coordinator's kit, who has no model: export at a site.")
        if client:
            raise UserError(f"'{run}' is the kit of one site, with one model: leave --client out.")
        print_exported(export_now(kit, data or read_settings(kit).data, out))
    else:
        print_exported(export_run(run, client, out, data=data, alone=alone))


def predict(
    folder: Annotated[Path, typer.Argument(metavar="MODEL", help="An exported model's folder.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option("--top", help="So many classes for each image.", min=1)] = 3,
    runtime: Annotated[str, typer.Option("--runtime", help="onnx, torch or auto.")] = "auto",
    format: Annotated[str, typer.Option("--format", help="lines, or json with every class.")] = "lines",
) -> None:
    """What an exported model says of pictures: class names and probabilities."""
    if format not in ("lines", "json"):
        raise UserError(f"--format '{format}' must be lines or json.")
    with images_told(notes):  # what is printed may be for a program
        found = predict_images(folder, images, runtime)
    if format == "json":
        typer.echo(json.dumps([{"image": str(one.image), "classes": dict(one.classes)} for one in found], indent=1))
        return
    for prediction in found:
        shares = ", ".join(f"{name} {100 * share:.1f}%" for name, share in prediction.classes[:top])
        console.print(f"{prediction.image}: {shares}", highlight=False, soft_wrap=True)
