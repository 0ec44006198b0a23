"""Clients from CSV, parquet and npz files, and from datasets of the Hugging Face library."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import factorized_fl as ffl
from factorized_fl.core.errors import UserError
from factorized_fl.data.rows import Rows
from tests.own.nets import table_net


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFL_CACHE", str(tmp_path / "cache"))


def write_csv(path: Path, rows: int = 24) -> Path:
    lines = ["site,age,weight,diagnosis,part"]
    for i in range(rows):
        part = "test" if i % 4 == 3 else "train"
        lines.append(f"{'north' if i % 3 else 'south'},{20 + i},{60.5 + i},{'viral' if i % 2 else 'normal'},{part}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_numbers_of_a_csv_file_become_clients_by_a_column(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "patients.csv")
    found = ffl.from_file(file, label="diagnosis", features=["age", "weight"], client="site", split="part")
    assert [client.name for client in found] == ["south", "north"]
    south = found[0]
    assert south.classes == ["normal", "viral"]
    assert south.x.tolist() == [[20.0, 60.5], [26.0, 66.5], [29.0, 69.5], [32.0, 72.5], [38.0, 78.5], [41.0, 81.5]]
    assert south.y.tolist() == [0, 0, 1, 0, 0, 1]
    assert south.test is not None
    assert south.test[0][:, 0].tolist() == [23.0, 35.0]
    run = ffl.run(found, tmp_path / "run", model=table_net, method="fedavg", rounds=1, epochs=1, batch_size=4)
    assert [entry["name"] for entry in run.clients()] == ["south", "north"]


def test_without_a_column_of_clients_a_table_is_divided(tmp_path: Path) -> None:
    whole = ffl.from_file(write_csv(tmp_path / "a.csv"), label="diagnosis", features=["age"], split="part")
    parts = ffl.partition(whole, 3)
    assert [len(client.y) for client in parts] == [6, 6, 6]
    assert all(client.test is whole[0].test for client in parts)
    assert sorted(float(x) for client in parts for x in client.x) == sorted(whole[0].x.flatten().tolist())


def test_numbers_to_predict_and_several_labels(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "a.csv")
    (one,) = ffl.from_file(file, label="weight", features=["age"])
    assert one.classes is None
    assert one.y[:2].tolist() == [60.5, 61.5]
    (two,) = ffl.from_file(file, label=["weight", "age"], features=["age"])
    assert two.y.shape == (24, 2)
    assert two.classes == ["weight", "age"]


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (value, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def test_images_by_path_stay_in_one_mapped_pool(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    lines = ["file,label,site"]
    for i in range(12):
        (tmp_path / "scans" / f"{i}.png").write_bytes(png(20 * i))
        lines.append(f"scans/{i}.png,{i % 2},{'a' if i < 6 else 'b'}")
    (tmp_path / "scans.csv").write_text("\n".join(lines))
    for _ in range(2):  # decoded, then from the cache
        found = ffl.from_file(tmp_path / "scans.csv", image="file", client="site")
        assert all(isinstance(client.x, Rows) for client in found)
        assert found[0].x.pool is found[1].x.pool
        assert found[1].x[:][:, 0, 0, 0].tolist() == [20 * i for i in range(6, 12)]
    run = ffl.run(found, tmp_path / "run", model="cnn", method="fedavg", rounds=1, epochs=1, batch_size=2)
    assert run.scenario.images.data_ptr() == found[0].x.pool.data_ptr()  # no copy in memory
    assert run.scenario.labels.tolist() == [0, 1] * 6


def test_rows_with_other_labels_of_another_client_are_copied() -> None:
    from factorized_fl.data.clients import own_scenario

    pool = torch.arange(6 * 64, dtype=torch.uint8).view(6, 1, 8, 8)
    rows, labels = Rows(pool, torch.tensor([0, 1, 2, 3])), torch.tensor([0, 1, 0, 1])
    clients = [
        ffl.ClientData(rows, labels, test=(rows, labels), name="a"),
        ffl.ClientData(Rows(pool, torch.tensor([2, 3, 4, 5])), 1 - labels, test=(rows, labels), name="b"),
    ]
    scenario = own_scenario(clients)
    for k, wanted in ((0, labels), (1, 1 - labels)):
        member = scenario.clients[k]
        assert scenario.labels[member.train].tolist() == wanted.tolist()
        assert torch.equal(scenario.images[member.train], clients[k].x[:])
        assert scenario.labels[member.test].tolist() == labels.tolist()


def test_parquet_with_bytes_and_lists(tmp_path: Path) -> None:
    table = pa.table(
        {
            "picture": [{"bytes": png(i), "path": None} for i in range(6)],
            "tokens": [[i, i + 1, 3] for i in range(6)],
            "series": [[0.5 * i, 1.0] for i in range(6)],
            "label": [0, 1, 0, 1, 0, 1],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (images,) = ffl.from_file(tmp_path / "a.parquet", image="picture", channels=1, size=4)
    assert images.x.shape == (6, 1, 4, 4)
    (tokens,) = ffl.from_file(tmp_path / "a.parquet", features="tokens")
    assert (tokens.x.dtype, tokens.x[1].tolist()) == (torch.int64, [1, 2, 3])
    (series,) = ffl.from_file(tmp_path / "a.parquet", features="series")
    assert (series.x.dtype, series.x[2].tolist()) == (torch.float32, [1.0, 1.0])


def test_npz_with_a_test_file_for_each_client(tmp_path: Path) -> None:
    x, y = np.arange(48, dtype=np.float64).reshape(8, 2, 3), np.arange(8) % 2
    np.savez(tmp_path / "train.npz", x=x, y=y, client=np.array([1, 1, 1, 1, 2, 2, 2, 2]))
    np.savez(tmp_path / "test.npz", x=x[2:6], y=y[2:6], client=np.array([1, 1, 2, 2]))
    found = ffl.from_file(tmp_path / "train.npz", features="x", label="y", client="client", test=tmp_path / "test.npz")
    assert [client.name for client in found] == ["1", "2"]
    assert found[1].test is not None
    assert found[1].test[0][:, 0, 0].tolist() == [24.0, 30.0]
    shared = ffl.from_file(tmp_path / "train.npz", features="x", label="y", test=tmp_path / "test.npz")
    assert shared[0].test is not None
    assert len(shared[0].test[0]) == 4


def test_hugging_face_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "ant"]),
            "site": datasets.Value("string"),
        }
    )
    rows = {
        "image": [{"bytes": png(i), "path": None} for i in range(8)],
        "label": [0, 1] * 4,
        "site": ["x"] * 4 + ["y"] * 4,
    }
    whole = datasets.Dataset.from_dict(rows, features=features)
    parts = datasets.DatasetDict({"train": whole, "test": whole.select([0, 1, 5])})
    first, second = ffl.from_hf(parts, client="site", size=8)
    assert (first.name, first.classes, second.y.tolist()) == ("x", ["cat", "ant"], [0, 1, 0, 1])
    assert second.test is not None
    assert second.test[0][:][:, 0, 0, 0].tolist() == [5]
    with pytest.raises(UserError, match=r"takes a datasets\.Dataset, a DatasetDict or a name, not list"):
        ffl.from_hf([1, 2])


BAD: list[tuple[dict[str, Any], str]] = [
    ({"label": "diagnosi", "features": ["age"]}, "Unknown column of .*'diagnosi'. Did you mean 'diagnosis'?"),
    ({"label": "diagnosis"}, "needs either image= or features="),
    ({"label": "diagnosis", "features": ["site"]}, "The column 'site' of .* holds no numbers"),
    ({"label": "diagnosis", "features": ["age"], "split": "site"}, "Row 1 of .* has 'south' in 'site'"),
    ({"label": "diagnosis", "features": ["age"], "classes": ["viral"]}, "Row 1 of .* has the class 'normal'"),
    ({"label": "diagnosis", "image": "site"}, "Row 1 of .* names the image '.*south', which does not exist"),
    ({"label": "diagnosis", "image": "age"}, "Row 1 of .* has no image in the column 'age'"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_what_cannot_be_used_is_named(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        ffl.from_file(write_csv(tmp_path / "a.csv"), **arguments)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.parquet").write_text("x")
    (tmp_path / "gap.csv").write_text("age,label\n1,a\n,b\n")
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.zeros(2))
    (tmp_path / "b.npz").write_text("x")
    for name, words in (
        ("no.csv", "There is no file"),
        ("a.txt", "is not a table: give a file that ends in"),
        ("a.parquet", "cannot be read as a table"),
        ("a.npz", "must have equal numbers of rows, but x has 3, y has 2"),
        ("b.npz", "is no npz file: write it with numpy.savez"),
        ("gap.csv", "Row 2 of .* has no number in the column 'age'"),
    ):
        with pytest.raises(UserError, match=words):
            ffl.from_file(tmp_path / name, features=["age"])
