"""Runs small federations, as one of several ranks: `python -m tests.simulate.ranked FOLDER ROUNDS METHOD ...`."""

import sys
from pathlib import Path

from factorized_fl.simulate.run import run_federation
from tests.tiny import tiny_config, tiny_scenario

SETTINGS = {"clients": 5, "fraction": 0.8, "dropout": 0.2}


def run_all(folder: Path, rounds: int, methods: list[str]) -> None:
    """Runs each method in a directory of its own, and continues from the checkpoints that are there."""
    for name in methods:
        config = tiny_config(name, rounds=rounds, **SETTINGS)
        run_federation(config, folder / name, scenario=tiny_scenario(config), resume=True)


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
