"""Learning rates: the one that was best on validation images, for each entry of a suite."""

import json
from pathlib import Path

from factorized_fl.bench.cells import Record, read_cell
from factorized_fl.bench.suites import Rates, Suite, tuning_cells
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically

RATES = "rates"  # the folder of the files beside those of the suites


def choose_rates(suite: Suite, results: Path) -> Record:
    """Return the validation accuracy of each entry at each rate, and the best rate of each entry that has all runs."""
    found: dict[str, dict[str, float]] = {}
    commits, unfinished = set(), set()
    for cell in tuning_cells(suite):
        if not cell.path(results).exists():
            unfinished.add(cell.entry)
            continue
        record = read_cell(cell.path(results), cell.config)
        scores = record["summary"]["score_means"]["recalibrated"]
        commits.add(str(record["commit"]))
        found.setdefault(cell.entry, {})[f"{cell.config.lr:g}"] = round(scores["validation"], 5)
    chosen = {
        entry: float(max(tried, key=lambda rate: tried[rate]))
        for entry, tried in found.items()
        if entry not in unfinished
    }
    return {
        "suite": suite.name,
        "seed": suite.tuning.get("seed", suite.seeds[0]),
        "score": "mean accuracy over clients on validation images, recalibrated",
        "commits": sorted(commits),
        "validation": found,
        "chosen": chosen,
        "unfinished": sorted(unfinished),
    }


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


def read_rates(suite: Suite, results: Path) -> Rates:
    """Return the chosen rates of a suite; empty if nothing was tuned. Raise UserError for a damaged file."""
    path = rates_path(suite, results)
    if not path.exists():
        return {}
    try:
        return {str(entry): float(rate) for entry, rate in json.loads(path.read_text("utf-8"))["chosen"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        advice = f"run `ffl bench {suite.rates_of or suite.name} --tune` again"
        raise UserError(f"The rates '{path}' cannot be read ({error}): {advice}.") from None
