"""Learning rates and options: those that were best on validation images, for each entry of a suite."""

import json
from pathlib import Path

from factorized_fl.bench.cells import Record, read_cell
from factorized_fl.bench.suites import Choices, Suite, tuning_cells
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically

RATES = "rates"  # the folder of the files beside those of the suites


def choose_rates(suite: Suite, results: Path) -> Record:
    """Return the validation accuracy of all that was tried, and the best for each entry that has all runs."""
    found: dict[str, list[Record]] = {}
    commits, unfinished = set(), set()
    for cell in tuning_cells(suite):
        if not cell.path(results).exists():
            unfinished.add(cell.entry)
            continue
        record = read_cell(cell.path(results), cell.config)
        score = record["summary"]["score_means"]["recalibrated"]["validation"]
        commits.add(str(record["commit"]))
        choice = {"lr": cell.config.lr} | {key: cell.config.options[key] for key in _option_names(cell.options)}
        found.setdefault(cell.entry, []).append({"validation": round(score, 5), "choice": choice})
    best = {entry: max(tried, key=lambda one: one["validation"]) for entry, tried in found.items()}
    return {
        "suite": suite.name,
        "seed": suite.tuning.get("seed", suite.seeds[0]),
        "score": "mean accuracy over clients on validation images, recalibrated",
        "commits": sorted(commits),
        "tried": found,
        "chosen": {entry: one["choice"] for entry, one in best.items() if entry not in unfinished},
        "unfinished": sorted(unfinished),
    }


def _option_names(text: str) -> list[str]:
    return [part.partition("=")[0] for part in text.split(",") if part]


def rates_path(suite: Suite, results: Path) -> Path:
    """Return the file of the rates that a suite runs with."""
    return results / RATES / f"{suite.rates_of or suite.name}.json"


def write_rates(suite: Suite, results: Path) -> Record:
    """Write the rates that the finished runs of a suite's tuning choose; return the file's content."""
    content = choose_rates(suite, results)
    path = rates_path(suite, results)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    return content


def read_rates(suite: Suite, results: Path) -> Choices:
    """Return what was chosen for the entries of a suite, if anything was; raise UserError for a damaged file."""
    path = rates_path(suite, results)
    if not path.exists():
        return {}
    try:
        chosen = json.loads(path.read_text("utf-8"))["chosen"]
        return {str(entry): {**choice, "lr": float(choice["lr"])} for entry, choice in chosen.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        advice = f"run `ffl bench {suite.rates_of or suite.name} --tune` again"
        raise UserError(f"The rates '{path}' cannot be read ({error}): {advice}.") from None
