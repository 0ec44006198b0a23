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


def test_what_is_found_while_clients_train() -> None:
    found = json.loads((ROOT / "results" / "fingerprints" / "over-rounds.json").read_text())
    assert found["rounds"] == [1, 2, 5, 15, 30]
    first, *_ = found["seeds"]
    for name, size in first["numbers"].items():
        by_seed = [[row["nearest"][name] for row in one["rows"]] for one in found["seeds"]]
        shares = [fmean(values) for values in zip(*by_seed, strict=True)]
        assert f"| {name} | {size:,} | " + " | ".join(f"{share:.2f}" for share in shares) + " |" in PAGE


def test_accuracy_on_the_demo() -> None:
    for name in ("peers", "plain"):
        rows = {row["method"]: row for row in json.loads((ROOT / "results" / "demo" / f"{name}.json").read_text())}
        assert all(row["seed_spread"] is not None for row in rows.values())  # several seeds
        for method in ("stand-alone", "factorized-fl-beta", "factorized-peers"):
            assert f"{100 * rows[method]['accuracy']:.2f}%" in PAGE


def test_what_blur_does() -> None:
    rows = [row["blur"] for row in ROWS if "blur" in row]
    for blur in rows[0]:
        numbers = [fmean(row[blur][kind] for row in rows) for kind in ("nearest", "own_weight")]
        assert f"| {float(blur):g} | " + " | ".join(f"{number:.2f}" for number in numbers) + " |" in PAGE
