"""Collects miniatures and writes docs/mini.md.

    python -m studies.mini collect --grid FOLDER --tuning FOLDER [FOLDER ...]
    python -m studies.mini show

The folders hold run directories of `ffl run mini-domains`. `collect` writes results/mini/grid.json and tuning.json;
`show` writes the tables of docs/mini.md from them.
"""

import argparse
from pathlib import Path

from studies.mini.collect import write_grid, write_tuning
from studies.mini.show import write_page


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collect = commands.add_parser("collect")
    collect.add_argument("--grid", type=Path, required=True)
    collect.add_argument("--tuning", type=Path, nargs="+", required=True)
    commands.add_parser("show")
    arguments = parser.parse_args()
    if arguments.command == "collect":
        write_grid(arguments.grid)
        write_tuning(arguments.tuning)
    else:
        write_page()


if __name__ == "__main__":
    main()
