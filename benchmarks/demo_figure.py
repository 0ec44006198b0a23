"""The README's picture of the demo, from a finished `ffl demo`; `python -m benchmarks.refresh_demo` makes both."""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from factorized_fl.methods import METHODS
from factorized_fl.results.rundir import RunDirectory

COLOURS = ("#999999", "#E69F00", "#56B4E9", "#0072B2", "#009E73")  # distinguishable with colour blindness


def draw_demo(root: Path, out: Path) -> None:
    """Draws accuracies by method and domain, and the mixing weights of Factorized-Peers."""
    rows = json.loads((root / "comparison.json").read_text())
    runs = {row["method"]: RunDirectory(root / f"{row['method']}-seed1") for row in rows}
    figure, (bars, heat) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(1.7, 1), layout="constrained")
    domains: list[str] = []
    for index, (method, run) in enumerate(runs.items()):
        clients = run.summary()["clients"]
        domains = list(dict.fromkeys(client["domain"] for client in clients))
        groups = [[c["accuracy"] for c in clients if c["domain"] == domain] for domain in domains]
        groups.append([c["accuracy"] for c in clients])
        heights = [100 * sum(group) / len(group) for group in groups]
        places = [place + 0.17 * (index - 2) for place in range(len(groups))]
        bars.bar(places, heights, 0.16, label=METHODS[method].card.title, color=COLOURS[index])
    bars.set_xticks(range(len(domains) + 1), [*domains, "all clients"])
    bars.set_ylabel("accuracy of own models, %")
    bars.legend(frameon=False, ncols=2, fontsize="small")
    bars.set_ylim(0, bars.get_ylim()[1] * 1.2)
    bars.spines[["top", "right"]].set_visible(False)
    run = runs["factorized-peers"]
    weights = run.mixing(run.config().rounds)["matrix"]
    shown = heat.imshow(weights, cmap="viridis")
    size = len(weights) // len(domains)
    heat.set_xticks([size * (i + 0.5) - 0.5 for i in range(len(domains))], domains)
    heat.set_yticks([size * (i + 0.5) - 0.5 for i in range(len(domains))], domains)
    heat.set_title("Factorized-Peers: mixing weights", fontsize="medium")
    figure.colorbar(shown, ax=heat, shrink=0.85)
    figure.savefig(out, dpi=110)
