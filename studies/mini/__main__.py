"""Plans, runs and collects miniatures, and writes docs/mini.md.

    python -m studies.mini cells [--study options|rates]         the runs of the studies, as a JSON list
    python -m studies.mini run [--study ...] --data DIR --jobs N --out FOLDER
    python -m studies.mini collect [--grid FOLDER] [--rates FOLDER] [--options FOLDER]
    python -m studies.mini show

The folders hold files as `ffl bench` writes them: results/bench/mini-domains for the grid, and for the studies what
`run` writes. `collect` writes results/mini/grid.json, tuning.json and options.json; `show` writes the tables of
docs/mini.md from them.
"""

import argparse
import json
from pathlib import Path

from studies.mini.cells import planned, run_planned
from studies.mini.collect import write_grid, write_options, write_tuning
from studies.mini.show import write_page


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    cells, run = commands.add_parser("cells"), commands.add_parser("run")
    for command in (cells, run):
        command.add_argument("--study", choices=("options", "rates"), default="")
    run.add_argument("--data", type=Path)
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--out", type=Path, default=Path("runs/mini/results"))
    run.add_argument("--work", type=Path, default=Path("runs/mini/work"))
    collect = commands.add_parser("collect")
    for name in ("--grid", "--rates", "--options"):
        collect.add_argument(name, type=Path, nargs="+", default=[])
    commands.add_parser("show")
    given = parser.parse_args()
    if given.command == "cells":
        print(json.dumps([one.record() for one in planned(given.study)], indent=1))
    elif given.command == "run":
        for name, state in run_planned(given.study, given.out, given.work, data=given.data, jobs=given.jobs):
            print(f"{name}: {state}", flush=True)
    elif given.command == "collect":
        for folders, write in ((given.grid, write_grid), (given.rates, write_tuning), (given.options, write_options)):
            if folders:
                write(folders)
    else:
        write_page()


if __name__ == "__main__":
    main()
