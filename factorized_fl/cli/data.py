"""Commands for datasets: fetch, inspect."""

from pathlib import Path
from typing import Annotated

import typer

from factorized_fl.cli.common import AsJson, console, notes, print_json

app = typer.Typer(help="Download and inspect datasets.", no_args_is_help=True)


@app.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100, svhn or mnist.")],
    dest: Annotated[Path | None, typer.Option("--dest", help="Folder for it; default: the cache.")] = None,
) -> None:
    """Download a dataset from the Hugging Face hub, verify it and keep it."""
    from factorized_fl.data.fetch import fetch_dataset
    from factorized_fl.report.tables import format_bytes

    def progress(file: str, done: int, total: int) -> None:
        console.print(f"{file}: {format_bytes(done)} of {format_bytes(total)}", highlight=False)

    console.print(f"{name} is in {fetch_dataset(name, dest, on_progress=progress)}", highlight=False)


@app.command("inspect")
def inspect_command(
    path: Annotated[Path, typer.Argument(help="A folder of class folders, or parquet files.")],
    as_json: AsJson = False,
) -> None:
    """Check your own images before training: counts, sizes, unreadable files, duplicates. Runs locally."""
    from factorized_fl.data.local_images import inspect_images
    from factorized_fl.report.documents import inspection_document
    from factorized_fl.report.progress import reporting_images
    from factorized_fl.report.tables import inspection_line, inspection_table

    with reporting_images(notes if as_json else console):
        inspection = inspect_images(path)
    if as_json:
        print_json(inspection_document(inspection))
        return
    console.print(inspection_line(inspection), highlight=False, soft_wrap=True)
    console.print(inspection_table(inspection))
    for complaint in inspection.complaints():
        console.print(f"Warning: {complaint}", highlight=False, soft_wrap=True)
