"""Commands about data sets."""

from pathlib import Path
from typing import Annotated

import typer

from factorized_fl.cli.common import console
from factorized_fl.data.fetch import fetch as fetch_data
from factorized_fl.data.local_images import inspect_images as inspect_data
from factorized_fl.report.inspection import inspection_line, inspection_table
from factorized_fl.report.progress import images_told
from factorized_fl.report.tables import size

app = typer.Typer(help="Fetch and look at data sets.", no_args_is_help=True)


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100, svhn or mnist.")],
    dest: Annotated[Path | None, typer.Option("--dest", help="Where to; default: the cache folder.")] = None,
) -> None:
    """Download a data set from the Hugging Face hub, check it, keep it."""

    def progress(file: str, done: int, total: int) -> None:
        console.print(f"{file}: {size(done)} of {size(total)}", highlight=False)

    console.print(f"{name} is in {fetch_data(name, dest, on_progress=progress)}", highlight=False)


@app.command("inspect")
def inspect(
    path: Annotated[Path, typer.Argument(help="A folder of class folders, or parquet files.")],
) -> None:
    """Look at your own images before you train: counts, sizes, unreadable files, duplicates. Nothing leaves."""
    with images_told(console):
        found = inspect_data(path)
    console.print(inspection_line(found), highlight=False, soft_wrap=True)
    console.print(inspection_table(found))
    for complaint in found.complaints():
        console.print(f"Look: {complaint}", highlight=False, soft_wrap=True)
