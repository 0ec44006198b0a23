"""The scripts of docs/own-data-and-model.md run."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import factorized_fl as ffl

TEXT = (Path(__file__).parents[2] / "docs" / "own-data-and-model.md").read_text(encoding="utf-8")


def write_files(folder: Path) -> None:
    """Write the three tables that the scripts read."""
    rows = [f"{i}.png,{'ab'[i % 2]},{'cd'[i // 4]},{'test' if i % 4 > 1 else 'train'}" for i in range(8)]
    (folder / "scans.csv").write_text("\n".join(["file,diagnosis,hospital,part", *rows]))
    for i in range(8):
        Image.new("L", (9, 8), i).save(folder / f"{i}.png")
    columns = {"age": range(8), "weight": range(8), "diagnosis": ["x", "y"] * 4, "hospital": ["c", "d"] * 4}
    pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), folder / "patients.parquet")
    arrays = {"x": np.zeros((8, 2, 5)), "y": np.arange(8) % 2, "site": np.array(["n", "s"] * 4)}
    for name in ("series", "series-test"):
        np.savez(folder / f"{name}.npz", **arrays)


def test_the_scripts_run(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    first, files, second, during = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    names: dict = {"__name__": "script"}
    exec(first, names)
    assert names["scores"].shape == (5, 2)
    assert type(names["net"]) is names["Net"]
    assert "over its control" in capsys.readouterr().out
    assert (tmp_path / "runs" / "own-control-seed1" / "summary.json").is_file()
    assert (tmp_path / "runs" / "report.html").is_file()
    write_files(tmp_path)
    exec(files, names)
    assert [len(client.y) for client in names["clients"]] == [4, 4]
    sets = {name: TensorDataset(torch.ones(4, 2), torch.arange(4) % 2) for name in ("subset1", "subset2", "test_set")}
    exec(second, names | sets, names)
    assert [client.name for client in names["clients"]] == ["north", "south"]

    names["clients"] = [ffl.ClientData(torch.randn(40, 3), torch.arange(40) % 2, name=name) for name in "ab"]
    exec(during, names)
    assert names["run"].checkpoint_round() >= 5


def test_the_script_without_the_network_and_the_data_has_at_most_fifteen_lines() -> None:
    script = re.findall(r"```python\n(.*?)```", TEXT, re.S)[0]
    body = script[script.index("clients = []") :].splitlines()
    assert len([line for line in body if line.strip()]) + 3 <= 15  # three imports
