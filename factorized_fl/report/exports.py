"""Tables as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Mapping, Sequence

from factorized_fl.results.classes import MatchedClass
from factorized_fl.results.effect import Verdict
from factorized_fl.results.reading import RunFiles
from factorized_fl.results.schema import ClientEntry
from factorized_fl.results.words import score_text

Rows = list[list[str]]  # the first is the heading

_MARKDOWN = {mark: f"\\{mark}" for mark in "\\|`*_<>[]"}
_LATEX = {
    **{mark: rf"\{mark}" for mark in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "\n": " ",
    "\r": " ",
}


def downloads(name: str, table: Rows, clients: Rows) -> Mapping[str, str]:
    """Return files by name: the table in three formats, and one line per client in full precision."""
    files = {f"{name}.md": markdown(table), f"{name}.tex": latex(table), f"{name}.csv": as_csv(table)} if table else {}
    return files | {f"{name}-clients.csv": as_csv(clients)}


def markdown(rows: Rows) -> str:
    """Return a table in GitHub's Markdown."""
    escaped = str.maketrans(_MARKDOWN)
    lines = [f"| {' | '.join(' '.join(cell.translate(escaped).split()) for cell in row)} |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines) + "\n"


def latex(rows: Rows) -> str:
    """Return a LaTeX tabular with the rules of booktabs."""
    escaped = str.maketrans(_LATEX)
    head, *body = [" & ".join(cell.translate(escaped) for cell in row) + r" \\" for row in rows]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])


def as_csv(rows: Rows) -> str:
    """Return comma-separated values, one line per row."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[_csv_cell(cell) for cell in row] for row in rows])
    return text.getvalue()


def _csv_cell(cell: str) -> str:
    """Return the cell, marked as text if a spreadsheet would run it as a formula."""
    if cell[:1] in ("=", "+", "-", "@", "\t", "\r"):
        try:
            float(cell)
        except ValueError:
            return cell if cell == "-" else f"'{cell}"
    return cell


def verdict_rows(clients: Sequence[ClientEntry], verdicts: Sequence[Verdict], metric: str) -> Rows:
    """Return a table of every client's verdict by the primary metric, of shares in percent."""
    rows = [["client", "domain", "reference", "with federation", "difference", "95% from", "to", "verdict"]]
    for verdict in verdicts:
        shares = (verdict.reference, verdict.accuracy, verdict.difference, verdict.low, verdict.high)
        numbers = [score_text(metric, share).removesuffix("%") for share in shares]
        rows.append([clients[verdict.client - 1]["name"], verdict.domain, *numbers, verdict.word])
    return rows


def client_rows(runs: Sequence[RunFiles]) -> Rows:
    """Return a table of every client's last result in every run."""
    metrics = {run.metric for run in runs}
    score = metrics.pop() if len(metrics) == 1 else "score"
    rows = [["run", "method", "seed", "client", "domain", "round", score, "correct", "total"]]
    for run in runs:
        for r in run.final:
            name = run.clients[r["client"]]["name"]
            numbers = [
                str(r["round"]),
                repr(r["accuracy"]),
                "" if r["correct"] is None else str(r["correct"]),
                str(r["total"]),
            ]
            rows.append([run.path.resolve().name, run.method, str(run.seed), name, r["domain"], *numbers])
    return rows


def class_rows(matches: Sequence[MatchedClass]) -> Rows:
    """Return a table of matched classes: the beginning of a mapping between the class lists of two clients."""
    rows = [["client", "class", "name", "peer", "peer_class", "confidence", "share_from_peers"]]
    for row in matches:
        peer = [row.peer, str(row.peer_number), f"{row.confidence:g}", f"{row.taken:g}"] if row.peer else [""] * 4
        rows.append([row.client, str(row.number), row.name, *peer])
    return rows
