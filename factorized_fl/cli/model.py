"""Commands for exported models: export, predict, evaluate."""

import json
from pathlib import Path
from typing import Annotated

import typer

from factorized_fl.cli.common import Data, console, notes
from factorized_fl.core.errors import UserError


def export_command(
    run: Annotated[Path, typer.Argument(metavar="RUN|KIT", help="A run directory, or a site's kit.")],
    client: Annotated[int, typer.Option("--client", "-k", help="The client, counted from 1; for a run only.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write; default: RUN/model/client-K.")] = None,
    data: Data = None,
    alone: Annotated[Path | None, typer.Option("--alone", help="A Stand-Alone run, for the verdict.")] = None,
    control: Annotated[
        bool, typer.Option("--control", help="For a kit: the model trained without the other sites.")
    ] = False,
) -> None:
    """Export a client's model: dense weights, ONNX, class names, preprocessing, a model card."""
    from factorized_fl import api

    exported = api.export(run, client, out, data=data, alone=alone, control=control)
    console.print(
        f"{exported.folder}: {exported.words} on {exported.images:,} test examples; "
        f"scores equal the trained model's to {exported.largest_difference:.1e}"
        f"{', also for ONNX' if exported.onnx else ''}",
        highlight=False,
        soft_wrap=True,
    )
    if verdict := exported.verdict:
        assert exported.effect is not None
        word = verdict.word if exported.seeds > 1 else "one seed cannot decide"
        console.print(f"{exported.effect.gap(verdict)} over {exported.effect.over}: {word}.", highlight=False)


def predict_command(
    folder: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of an exported model.")],
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGES...", help="Image files, folders of them, or .npy files.")
    ],
    top: Annotated[int, typer.Option("--top", help="Number of classes to print for each image.", min=1)] = 3,
    runtime: Annotated[str, typer.Option("--runtime", help="onnx, torch or auto.")] = "auto",
    form: Annotated[str, typer.Option("--format", help="lines, or json with all classes.")] = "lines",
) -> None:
    """Classify images with an exported model: class names and probabilities."""
    if form not in ("lines", "json"):
        raise UserError(f"--format '{form}' must be lines or json.")
    from factorized_fl.export.predict import predict
    from factorized_fl.report.progress import reporting_images

    with reporting_images(notes):  # standard output may be read by a program
        predictions = predict(folder, images, runtime)
    if form == "json":
        records = [
            {"image": str(found.image), "numbers" if found.numbers else "classes": dict(found.classes)}
            | ({} if found.row is None else {"row": found.row})
            for found in predictions
        ]
        typer.echo(json.dumps(records, indent=1))
        return
    for found in predictions:
        if found.numbers:
            shares = ", ".join(f"{name} {value:.6g}" for name, value in found.classes)
        else:
            shares = ", ".join(f"{name} {100 * share:.1f}%" for name, share in found.classes[:top])
        place = found.image if found.row is None else f"{found.image} [{found.row}]"
        console.print(f"{place}: {shares}", highlight=False, soft_wrap=True)


def evaluate_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL|KIT", help="An exported model, or a site's kit.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="Images with known classes; default for a kit: the site's data.")
    ] = None,
    image: Annotated[str, typer.Option("--image", help="For a table: the column of images.")] = "",
    label: Annotated[str, typer.Option("--label", help="For a table: the column of labels; default: label.")] = "",
    split: Annotated[str, typer.Option("--split", help="For a table: the column of train, validation, test.")] = "",
    subgroup: Annotated[
        list[str] | None, typer.Option("--subgroup", help="For a table: a column to divide the metrics by, repeatable.")
    ] = None,
    threshold: Annotated[
        float, typer.Option("--threshold", help="Probability from which an image counts as positive for a class.")
    ] = 0.5,
    out: Annotated[Path | None, typer.Option("--out", help="Also write metrics.json and metrics.csv here.")] = None,
) -> None:
    """Measure a model on test images: AUROC, sensitivity, calibration and more, with 95% intervals."""
    from factorized_fl.export.clinical_report import rows_by_class, rows_by_group, rows_overall, write_clinical
    from factorized_fl.report.listing import NamedTable
    from factorized_fl.report.progress import reporting_images
    from factorized_fl.silo.columns import TableColumns
    from factorized_fl.silo.evaluation import evaluate_folder

    columns = TableColumns(label=label, image=image, split=split, subgroups=tuple(subgroup or ()))
    with reporting_images(notes):
        report = evaluate_folder(model, data, threshold, columns)
    console.print(f"{report.whole.cases:,} test images", highlight=False)
    for line in report.warnings:
        notes.print(f"Warning: {line}", highlight=False, soft_wrap=not notes.is_terminal)
    for titles, rows in (
        (("metric", "value (95% interval)"), rows_overall(report)),
        (("class", "cases", "AUROC", f"sensitivity at {threshold:g}", "specificity"), rows_by_class(report)),
        (("subgroup", "images", "accuracy", "balanced accuracy"), rows_by_group(report)),
    ):
        if rows:
            table = NamedTable(titles)
            for row in rows:
                table.add_row(*map(str, row))
            console.print(table)
    if out:
        write_clinical(report, out)
        console.print(f"Written: {out}", highlight=False, soft_wrap=True)
