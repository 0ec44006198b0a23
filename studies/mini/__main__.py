"""Runs and collects the study of Factorized-FL's options, and writes docs/mini.md.

    python -m studies.mini run --data DIR --jobs N --out FOLDER    the study's runs; finished ones are not repeated
    python -m studies.mini collect FOLDER                          writes results/mini/options.json
    python -m studies.mini show                                    writes the generated parts of docs/mini.md

The page's answers come from results/bench/mini-domains, which `ffl bench mini-domains` writes.
"""

import argparse
from pathlib import Path

from studies.mini.options import run_planned, write_options
from studies.mini.show import write_page


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--data", type=Path)
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--out", type=Path, default=Path("runs/mini/results"))
    run.add_argument("--work", type=Path, default=Path("runs/mini/work"))
    commands.add_parser("collect").add_argument("folder", type=Path)
    commands.add_parser("show")
    given = parser.parse_args()
    if given.command == "run":
        for name, state in run_planned(given.out, given.work, data=given.data, jobs=given.jobs):
            print(f"{name}: {state}", flush=True)
    elif given.command == "collect":
        write_options(given.folder)
    else:
        write_page()


if __name__ == "__main__":
    main()
