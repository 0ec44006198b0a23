"""The command that shows how the classes of clients were matched."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from factorized_fl.cli.common import AsJson, console, print_json


def classes_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or a kit.")],
    client: Annotated[int | None, typer.Option("--client", help="Only this client, counted from 1.", min=1)] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Also write the matches to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how classes of different clients were matched, in a run with --set align=..."""
    from dataclasses import asdict

    from factorized_fl.core.files import write_atomically
    from factorized_fl.report.exports import as_csv, class_rows
    from factorized_fl.results.classes import judge_rows, matched_classes, run_and_sites

    path, sites = run_and_sites(run)
    rows = matched_classes(path, sites)
    names = list(dict.fromkeys(row.client for row in rows))
    if client is not None:
        from factorized_fl.core.errors import UserError

        if client > len(names):
            raise UserError(f"There is no client {client}: clients are numbered from 1 to {len(names)}.")
        rows = [row for row in rows if row.client == names[client - 1]]
    if csv:
        write_atomically(csv, as_csv(class_rows(rows)).encode())
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    table = Table(box=None, pad_edge=False)
    named = any(row.name for row in rows)  # a coordinator knows no names
    numbers = ("class", "confidence", "from peers")
    for title in (
        *(() if client else ("client",)),
        "class",
        *(("name",) if named else ()),
        "matched with",
        "confidence",
        "from peers",
    ):
        table.add_column(title, justify="right" if title in numbers else "left", overflow="fold")
    for own in dict.fromkeys((row.client, row.number, row.name) for row in rows):
        peers = [row for row in rows if (row.client, row.number, row.name) == own]
        matched = ", ".join(f"{row.peer}: {row.peer_number}" for row in peers if row.peer) or "no class"
        found = [f"{peers[0].confidence:.2f}", f"{peers[0].taken:.0%}"] if peers[0].peer else ["", ""]
        table.add_row(*(() if client else own[:1]), str(own[1]), *((own[2],) if named else ()), matched, *found)
    console.print(table)
    right, judged = judge_rows(rows)
    if judged:
        console.print(f"{right} of {judged} matches are right, by the names that this simulation knows.")
    if csv:
        console.print(f"CSV: {csv}", highlight=False, soft_wrap=True)
