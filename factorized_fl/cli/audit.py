"""The command that attacks what each party of a run saw."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from factorized_fl.cli.common import AsJson, Data, console, notes, print_json, resumable


def audit_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a complete run.")],
    data: Data = None,
    shadows: Annotated[
        int, typer.Option("--shadows", help="Number of repetitions with other training images.", min=4)
    ] = 16,
    pictures: Annotated[
        int, typer.Option("--pictures", help="Number of clients whose pictures are reconstructed; 0: none.", min=0)
    ] = 6,
    as_json: AsJson = False,
) -> None:
    """Attack what each party of a run saw: membership, senders, pictures, fingerprints."""
    from factorized_fl.audit.run import audit

    total = shadows + 2
    done = 0

    def progress(part: str) -> None:
        nonlocal done
        done += part in ("the run itself", "a shadow run")
        if notes.is_terminal and part != "fingerprints":
            notes.print(f"{done} of {total} repetitions are done.   ", end="\r", highlight=False)

    with resumable():
        content = audit(run, data=data, shadows=shadows, pictures=pictures, progress=progress)
    if as_json:
        print_json(content)
        return
    console.print(findings_table(content["findings"]))
    console.print("An attack works where its interval lies above chance. docs/privacy.md explains each one.")


def findings_table(findings: list[dict[str, Any]]) -> Table:
    """Return the findings with their intervals, and by chance."""
    table = Table(box=None, pad_edge=False)
    for title in ("seen by", "attack", "measure"):
        table.add_column(title, overflow="fold")
    for title in ("result", "chance"):
        table.add_column(title, justify="right", no_wrap=True)
    for found in findings:
        interval = f"{found['value']:.2f} ({found['low']:.2f}-{found['high']:.2f})"
        measure = {"area under the ROC curve": "AUC", "share of right guesses": "share right"}.get(
            found["measure"], "members found"
        )
        table.add_row(found["view"], found["attack"], measure, interval, f"{found['chance']:.2f}")
    return table
