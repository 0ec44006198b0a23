"""The scripts of docs/own-data-and-model.md run."""

import re
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

TEXT = (Path(__file__).parents[2] / "docs" / "own-data-and-model.md").read_text(encoding="utf-8")


def test_the_scripts_run(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    names: dict = {"__name__": "script"}
    exec(first, names)
    assert names["scores"].shape == (5, 2)
    assert type(names["net"]) is names["Net"]
    words = capsys.readouterr().out
    assert words.count("'") == 6  # three verdicts
    assert all(word in ("helped", "harmed", "no difference") for word in re.findall(r"'(.*?)'", words))
    assert (tmp_path / "runs" / "report.html").is_file()
    sets = {name: TensorDataset(torch.ones(4, 2), torch.arange(4) % 2) for name in ("subset1", "subset2", "test_set")}
    exec(second, names | sets, names)
    assert [client.name for client in names["clients"]] == ["north", "south"]


def test_the_script_without_the_network_and_the_data_has_at_most_fifteen_lines() -> None:
    script = re.findall(r"```python\n(.*?)```", TEXT, re.S)[0]
    body = script[script.index("clients = []") :].splitlines()
    assert len([line for line in body if line.strip()]) + 3 <= 15  # three imports
