"""docs/verdict.md says what the calibration and the example gave."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verdict.md").read_text(encoding="utf-8")
TITLES = {"fedavg": "FedAvg", "factorized-fl": "Factorized-FL", "factorized-peers": "Factorized-Peers"}


def test_the_calibration_is_on_the_page_and_errs_in_at_most_5_percent() -> None:
    found = json.loads((ROOT / "results" / "verdict" / "calibration.json").read_text())
    measured = [*found["simulated"].values(), found["real"]]
    assert all(one["without an effect"]["name any client"] <= 0.05 for one in measured)
    for one in found["simulated"].values():
        gain = one["with the gain"]
        named = f"{100 * one['without an effect']['name any client']:.1f}%"
        assert f"| {named} | {100 * gain['clients helped']:.0f}% | {100 * gain['interval above zero']:.0f}% |" in PAGE
    real, gain = found["real"]["without an effect"], found["real"]["with the gain"]
    assert real["comparisons"] == 200
    text = " ".join(PAGE.split())
    assert f"{100 * real['name any client']:.1f}% of these comparisons name some client" in text
    assert f"leaves out zero in {100 * real['interval without zero']:.1f}%" in text
    assert f"{100 * gain['clients helped']:.0f}% of the clients are found" in text
    assert f"above zero in {100 * gain['interval above zero']:.0f}%" in text


def test_the_example_is_on_the_page() -> None:
    for row in json.loads((ROOT / "results" / "verdict" / "mnist.json").read_text()):
        effect = row["effect"]
        assert effect["seeds"] == 3
        points = "{mean:+.1f} ({low:+.1f} to {high:+.1f})".format(
            **{name: 100 * effect[name] for name in ("mean", "low", "high")}
        )
        helped, harmed = ([one["word"] for one in effect["clients"]].count(word) for word in ("helped", "harmed"))
        assert f"| {TITLES[row['method']]} | {points} | {helped}{' of 6' if helped else ''} | {harmed} |" in PAGE
