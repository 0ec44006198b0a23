"""The tables of docs/privacy.md are those of the files under results/privacy/."""

from pathlib import Path

import pytest

from benchmarks import privacy_tables

ROOT = Path(__file__).parents[2]


def test_the_tables_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = privacy_tables.PAGE.read_text(encoding="utf-8")
    assert privacy_tables.page(text) == text


def test_a_changed_number_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = privacy_tables.PAGE.read_text(encoding="utf-8")
    table = privacy_tables.membership()
    assert text.count(table) == 1
    assert privacy_tables.page(text.replace(table, table.replace("FedAvg", "other"))) == text
