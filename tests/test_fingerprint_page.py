"""The numbers on the page about fingerprints are those of the results file."""

import json
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "fingerprints.md").read_text()
ROWS = json.loads((ROOT / "results" / "fingerprints" / "matching.json").read_text())["rows"]


def test_how_well_it_works() -> None:
    settings = list(dict.fromkeys(row["setting"] for row in ROWS))
    assert len(settings) == 6
    for setting in settings:
        rows = [row for row in ROWS if row["setting"] == setting]
        assert len(rows) == 3
        shares = [fmean(row["nearest"][kind] for row in rows) for kind in rows[0]["nearest"]]
        numbers = [fmean(row["chance"] for row in rows), *shares, fmean(row["own_weight"] for row in rows)]
        assert f"| {setting} | " + " | ".join(f"{number:.2f}" for number in numbers) + " |" in PAGE


def test_accuracy_on_the_demo() -> None:
    rows = {row["method"]: row for row in json.loads((ROOT / "results" / "demo" / "peers.json").read_text())}
    assert all(row["seed_spread"] is not None for row in rows.values())  # several seeds
    for method in ("stand-alone", "factorized-fl-beta", "factorized-peers"):
        assert f"{100 * rows[method]['accuracy']:.2f}%" in PAGE


def test_what_blur_does() -> None:
    rows = [row["blur"] for row in ROWS if "blur" in row]
    for blur in rows[0]:
        numbers = [fmean(row[blur][kind] for row in rows) for kind in ("nearest", "own_weight")]
        assert f"| {float(blur):g} | " + " | ".join(f"{number:.2f}" for number in numbers) + " |" in PAGE
