"""The scripts of docs/five-scripts.md run as they are, and have at most fifteen lines."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

TEXT = (Path(__file__).parents[2] / "docs" / "five-scripts.md").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r"\n## (.*?)\n.*?```python\n(.*?)```", TEXT, re.S))


def test_there_are_five() -> None:
    assert len(SCRIPTS) == 5


@pytest.mark.parametrize("title", SCRIPTS)
def test_a_script_runs(title: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    script = SCRIPTS[title]
    assert len([line for line in script.splitlines() if line.strip()]) <= 15
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(script, title, "exec"), names)
    run = names["run"]
    assert run.summary() is not None
    assert isinstance(run.model(1), torch.nn.Module)
    assert capsys.readouterr().out
