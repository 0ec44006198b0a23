"""Speed of the demo with one thread and with all threads, on an idle machine and beside a busy process.

    python benchmarks/threads.py [--rounds 2] [--out results/performance/threads.json]

Two federations train the same clients round by round in turn, one with one thread and one with all threads; then once
more while another process keeps one core busy. The results are times in seconds and their ratio.
"""

import argparse
import json
import multiprocessing
import time
from pathlib import Path

import torch

from factorized_fl.api import configure
from factorized_fl.results.environment import describe_environment
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.scenario import build_scenario_of


def busy() -> None:
    while True:
        pass


def train(federation: Federation, round_number: int) -> float:
    clients = range(len(federation.scenario.clients))
    began = time.perf_counter()
    federation.engine.train(round_number, clients, federation.clients, lambda client: None)
    return time.perf_counter() - began


def side_by_side(counts: tuple[int, ...], rounds: int) -> dict[str, float]:
    config = configure("demo", "factorized-fl")
    scenario = build_scenario_of(config)
    federations = []
    for count in counts:
        federations.append(build_federation(config, scenario, torch.device("cpu")))
        federations[-1].engine.threads = count
    seconds = [0.0] * len(counts)
    for round_number in range(rounds + 1):
        for index, federation in enumerate(federations):
            took = train(federation, round_number + 1)
            seconds[index] += took if round_number else 0.0  # the first one warms up
    one, all_of_them = seconds
    return {"one_thread_s": one, "all_threads_s": all_of_them, "all_over_one": all_of_them / one}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/performance/threads.json"))
    arguments = parser.parse_args()
    counts = (1, torch.get_num_threads())
    found = {"environment": describe_environment(1, "cpu"), "rounds": arguments.rounds}
    found["idle"] = side_by_side(counts, arguments.rounds)
    neighbour = multiprocessing.Process(target=busy, daemon=True)
    neighbour.start()
    found["beside_a_busy_process"] = side_by_side(counts, arguments.rounds)
    neighbour.kill()
    for where in ("idle", "beside_a_busy_process"):
        print(where, {name: round(value, 2) for name, value in found[where].items()})
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
