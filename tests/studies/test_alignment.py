"""The numbers in docs/classes.md are those of results/align/."""

import json
from pathlib import Path

import pytest
import torch

from factorized_fl.bench.cells import Place, run_or_read
from factorized_fl.bench.suites import Suite, cells_of, read_suites
from factorized_fl.core.classes import Matches
from factorized_fl.results.entries import parse_entry
from factorized_fl.simulate.alignment import judge_matches
from studies import alignment_runs, alignment_variants
from studies.alignment import matching_lines, score
from studies.alignment_checks import check_lines
from studies.subspaces import angle_lines

ROOT = Path(__file__).parents[2]


def test_the_documentation_has_the_measured_numbers() -> None:
    record = json.loads((ROOT / "results" / "align" / "matching.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "classes.md").read_text(encoding="utf-8")
    checks = json.loads((ROOT / "results" / "align" / "checks.json").read_text(encoding="utf-8"))
    lines = matching_lines(record) + check_lines(checks)
    assert len(lines) > 10
    assert [line for line in lines if line not in text.splitlines()] == []
    assert alignment_runs.with_table(text, ROOT / "results" / "bench") == text
    assert alignment_variants.with_variants(text, ROOT / "results" / "bench") == text


def test_the_angles_of_pacfl_are_the_measured_ones() -> None:
    record = json.loads((ROOT / "results" / "align" / "angles.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "prior-art.md").read_text(encoding="utf-8")
    assert [line for line in angle_lines(record) if line not in text.splitlines()] == []


def test_the_table_has_a_row_for_each_way_with_its_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One command runs a suite with and without matching; what `ffl bench` has run is not run again."""
    settings = {"rounds": 2, "epochs": 1, "images_per_client": 16, "test_images": 40, "clients": 6}
    suite = Suite("demo", "demo", ("fedavg", "fedavg:align=true"), (1,), settings)
    monkeypatch.setattr(alignment_runs, "suite_of", lambda preset: suite)
    monkeypatch.setattr(alignment_runs, "PRESETS", ("demo",))
    results = tmp_path / "results"
    run_or_read(cells_of(suite, {}, only=["fedavg"])[0], Place(results, tmp_path / "work"))
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*.json")}
    alignment_runs.main(["run", "demo", "--results", str(results), "--work", str(tmp_path / "work")])
    assert {path: path.stat().st_mtime_ns for path in before} == before
    *_, without, with_true = alignment_runs.table_of(results).splitlines()
    assert without.startswith("| `demo` | fedavg | off | ")
    assert with_true.endswith("(1 seed) | 100% / 100% | 1 |")


def test_every_preset_has_all_ways_with_the_rates_of_runs_without_matching() -> None:
    for preset in alignment_runs.PRESETS:
        cells = cells_of(alignment_runs.suite_of(preset), {"fedavg": {"lr": 0.5}})
        assert {cell.config.lr for cell in cells if cell.config.method == "fedavg"} == {0.5}
        assert {cell.config.align for cell in cells} == {"off", "statistics", "classifier", "true"}
        known = {cell.name for cell in cells_of(read_suites()[preset], {"fedavg": {"lr": 0.5}})}
        assert {cell.name for cell in cells if cell.config.align == "off"} <= known


def test_variants_train_for_as_many_steps_at_the_rate_of_their_method(tmp_path: Path) -> None:
    """The first variant is the suite's own run, so that it is not run again."""
    (tmp_path / "rates").mkdir()
    control = "factorized-fedavg:control=true"
    rates = {"stand-alone": 0.125, control: 0.0625, "fedavg": 0.5, "factorized-peers": 0.25}
    chosen = {entry: {"lr": rate} for entry, rate in rates.items()}
    (tmp_path / "rates" / "mini-domains.json").write_text(json.dumps({"chosen": chosen}))
    cells = alignment_variants.cells(tmp_path)
    expected = {(parse_entry(entry).method, rate) for entry, rate in rates.items()}
    assert {(cell.config.method, cell.config.lr) for cell in cells} == expected
    assert {cell.config.control for cell in cells if cell.config.method == "factorized-fedavg"} == {True}
    assert {cell.config.rounds * cell.config.epochs for cell in cells} == {100}
    assert len({cell.name for cell in cells}) == len(cells) == (2 + 2 * 2) * 4 * 3
    known = cells_of(read_suites()["mini-domains"], chosen, only=list(rates))
    assert {cell.name for cell in known} <= {cell.name for cell in cells}


def test_a_variant_is_compared_with_the_first_one_and_the_same_matching(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command runs what is missing, and the table has a row for each finished run."""
    settings = {"images_per_client": 16, "test_images": 40, "clients": 6}
    first, more = {"rounds": 1, "epochs": 2}, {"rounds": 2, "epochs": 1}
    monkeypatch.setattr(alignment_variants, "VARIANTS", {alignment_variants.FIRST: first, "more": more})
    monkeypatch.setattr(alignment_variants, "METHODS", ("fedavg",))
    monkeypatch.setattr(alignment_variants, "REFERENCES", ("stand-alone",))
    monkeypatch.setattr(alignment_variants, "WAYS", ({}, {"align": "true"}))
    entries = alignment_variants.suite_of().entries
    suite = Suite("demo", "demo", entries, (1,), settings)
    monkeypatch.setattr(alignment_variants, "suite_of", lambda: suite)
    results, page = tmp_path / "results", tmp_path / "page.md"
    page.write_text(f"before\n{alignment_variants.BEGIN}\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr(alignment_variants, "PAGE", page)
    alignment_variants.main(["run", "--results", str(results), "--work", str(tmp_path / "work")])
    assert len(list(results.rglob("*.json"))) == 6
    alignment_variants.main(["show", "--results", str(results)])
    before, _, _, _, *table, _, after = page.read_text().splitlines()
    assert (before, after) == ("before", "after")
    assert [line.split("|")[2].strip() for line in table] == ["off", "off", "off", "off", "true", "true"]
    changes, gains = ([line.split("|")[column].count("(1 seed)") for line in table] for column in (5, 6))
    assert (changes, gains) == ([0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 1, 1])
    assert table[0].startswith("| Stand-Alone | off | 20 rounds, 5 epochs | ")
    assert table[-1].endswith("100% / 100% | 1 |")


def test_runs_that_matched_nothing_are_not_judged() -> None:
    runs = [{"summary": {"matches": {"same": 9, "matched": number, "right": 0}}} for number in (0, 0)]
    assert not alignment_runs.has_matches(runs)
    assert not alignment_runs.has_matches([{"summary": {}}])
    assert alignment_runs.has_matches([*runs, {"summary": {"matches": {"matched": 1}}}])


def test_a_score_counts_pairs_of_classes_of_different_clients() -> None:
    """Two matched pairs are wrong, and both are of the client that is not sure."""
    truth = torch.tensor([[0, 1], [1, 0], [0, -1]])
    labels = torch.tensor([[5, 6], [6, 5], [6, -1]])
    sure = torch.tensor([[0.9, 0.9], [0.9, 0.9], [0.2, 0.0]], dtype=torch.float64)
    found = score(Matches(labels, sure), truth)
    assert found["same"] == 4
    assert found["0"] == {"matched": 4, "right": 2}
    assert judge_matches(labels, truth) == {"same": 4, "matched": 4, "right": 2}
    assert found["0.5"] == {"matched": 2, "right": 2}
