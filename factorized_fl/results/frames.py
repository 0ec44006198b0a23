"""A run as one line, as a small HTML table for notebooks, and its metrics as a pandas table."""

from html import escape
from typing import TYPE_CHECKING

from factorized_fl.core.errors import UserError
from factorized_fl.results.rundir import Record, RunDirectory
from factorized_fl.results.schema import diverged, metric_of, score_of
from factorized_fl.results.words import method_title, score_text

if TYPE_CHECKING:
    import pandas

_NESTED = ("metrics", "scores")


def metrics_frame(run: RunDirectory) -> "pandas.DataFrame":
    """Return one row for each round and client, numbered from 1 and named; raise UserError without pandas."""
    try:
        import pandas
    except ImportError:
        raise UserError('to_pandas needs the library pandas: pip install "factorized-fl[pandas]".') from None
    names = client_names(run)
    rows = []
    for record in run.metrics():
        row = {"round": record["round"], "client": record["client"] + 1, "name": names[record["client"]]}
        row |= {key: value for key, value in record.items() if key not in row and key not in _NESTED}
        rows.append(row | (record.get("metrics") or {}))
    return pandas.DataFrame(rows)


def client_names(run: RunDirectory) -> list[str]:
    """Return the names of a run's clients in order."""
    return [str(client.get("name", f"client {k + 1}")) for k, client in enumerate(run.clients())]


def describe_progress(run: RunDirectory) -> str:
    """Return the method, size, progress and mean score of a run in one line."""
    config = run.config()
    records = [record for record in run.metrics() if score_of(record) is not None]
    done = max((record["round"] for record in run.metrics()), default=0)
    parts = [method_title(config.method), f"{len(run.clients())} clients", f"{done} of {config.rounds} rounds"]
    if records:
        last = _last(records)
        scores = [score for record in last.values() if (score := score_of(record)) is not None]
        mean = sum(scores) / len(scores)
        metric = metric_of(records[-1])
        parts.append(f"{metric} {score_text(metric, mean)}")
        if lost := sum(map(diverged, last.values())):
            parts.append(f"training of {lost} diverged")
    return ", ".join(parts) + ("" if run.summary() else ", not complete")


def run_html(run: RunDirectory) -> str:
    """Return a table of the clients with their last scores, for notebooks."""
    last = _last([record for record in run.metrics() if score_of(record) is not None])
    names = client_names(run)
    cells = [
        (str(k + 1), escape(names[k]), str(record["round"]), escape(last_score(record)))
        for k, record in sorted(last.items())
    ]
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
    metric = escape(metric_of(next(iter(last.values()), {})))
    head = f"<tr><th>client</th><th>name</th><th>round</th><th>{metric}</th></tr>"
    return f"<p>{escape(describe_progress(run))}<br><code>{escape(str(run.path))}</code></p><table>{head}{rows}</table>"


def last_score(record: Record) -> str:
    """Return the score of a test by its primary metric as text; "-" without one."""
    score = score_of(record)
    return "-" if score is None else score_text(metric_of(record), score)


def _last(records: list[Record]) -> dict[int, Record]:
    """Return the last of these records of each client."""
    return {record["client"]: record for record in records}
