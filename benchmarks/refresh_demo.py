"""The demo's result files, pictures and tables in one call, after a change of its defaults or of its network.

    python -m benchmarks.refresh_demo [--work FOLDER]

Runs `ffl demo`, and three methods with and without recalibration: some minutes on one core.
Writes results/demo/*.json, docs/demo.png, docs/report-*.png, and the tables between the lines
`<!-- demo ...: written ... -->` and `<!-- end of demo -->` of README.md and docs/fingerprints.md. A call that was
interrupted continues with the same folder.
"""

import argparse
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.demo_figure import draw_demo
from benchmarks.report_screens import photograph
from factorized_fl.api import COMPARISON, compare
from factorized_fl.methods import METHODS
from factorized_fl.presets import DEMO_METHODS
from factorized_fl.report.tables import HEADINGS, comparison_cells
from factorized_fl.results.comparison import Comparison, comparison_json

RESULTS = Path("results/demo")
SEEDS = (1, 2, 3)
OURS = ("stand-alone", "factorized-fl-beta", "factorized-peers")  # of peers.json and plain.json
LEFT_OUT = ("± seeds",)  # columns that the README's table does not have


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/refresh-demo"), help="folder of the run directories")
    work = parser.parse_args().work
    RESULTS.mkdir(parents=True, exist_ok=True)
    demo = compare("demo", DEMO_METHODS, SEEDS, work / "demo", resume=True)
    peers = compare("demo", OURS, SEEDS, work / "peers", resume=True)
    plain = compare("demo", OURS, SEEDS, work / "plain", resume=True, recalibrate=False)
    for name, rows in (("peers", peers), ("plain", plain)):
        (RESULTS / f"{name}.json").write_bytes(comparison_json(rows))
    shutil.copy(work / "demo" / COMPARISON, RESULTS / COMPARISON)
    draw_demo(work / "demo", Path("docs/demo.png"))
    photograph(work / "demo")
    replace_table(Path("README.md"), "demo", {"": demo})
    both = {"": peers, "without recalibration": plain}
    replace_table(Path("docs/fingerprints.md"), "demo, three seeds", both)


def replace_table(page: Path, name: str, groups: Mapping[str, Sequence[Comparison]]) -> None:
    """Writes the rows into the page, between the lines that mark the place."""
    kept = [index for index, heading in enumerate(HEADINGS) if heading not in LEFT_OUT]
    lines = [f"| method | {' | '.join(HEADINGS[index] for index in kept)} |", "|---" * (len(kept) + 1) + "|"]
    for group, rows in groups.items():
        for row in rows:
            cells = comparison_cells(row)
            cells[0] += "%"
            title = METHODS[row.method].card.title + (f", {group}" if group else "")
            lines.append(f"| {title} | {' | '.join(cells[index] for index in kept)} |")
    begin = f"<!-- {name}: written by `python -m benchmarks.refresh_demo` -->\n"
    text = page.read_text()
    pattern = re.escape(begin) + ".*?" + re.escape("<!-- end of demo -->")
    assert re.search(pattern, text, re.DOTALL), page
    table = begin + "\n".join(lines) + "\n<!-- end of demo -->"
    page.write_text(re.sub(pattern, lambda _: table, text, flags=re.DOTALL))


if __name__ == "__main__":
    main()
