"""The commands of docs/site-data.md, on a table of 16-bit pictures and DICOM files."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from factorized_fl.cli import app, network
from factorized_fl.core.errors import UserError
from factorized_fl.export import export
from factorized_fl.export.predict import predict
from factorized_fl.silo import supervise
from factorized_fl.silo.agreement import Kit, write_kit
from factorized_fl.silo.columns import TableColumns
from factorized_fl.silo.settings import read_settings
from factorized_fl.silo.site import Site
from factorized_fl.silo.site_data import site_scenario
from tests.data.test_dicom import write_dicom
from tests.silo.parties import kits_of, trio_config
from tests.silo.test_trust import round_request

GUIDE = (Path(__file__).parents[2] / "docs" / "site-data.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL) for line in block.splitlines()]
COLUMNS = TableColumns(label="diagnosis", image="file", group="patient", subgroups=("sex",), window="1000/2000")


def write_scans(root: Path, name: str = "scans.csv", count: int = 40) -> Path:
    """Two pictures of each patient: the left half is bright (1500 to 1999) for the ill; every fourth is DICOM."""
    rng = np.random.default_rng(0)
    (root / "scans").mkdir(parents=True, exist_ok=True)
    lines = ["file,diagnosis,patient,sex"]
    for i in range(count):
        ill = i // 2 % 2
        values = rng.integers(0, 500, (8, 8)).astype(np.uint16)
        values[:, :4] += np.uint16(1500 * ill)
        path = root / "scans" / f"{name}-{i:04d}{'.dcm' if i % 4 == 3 else '.png'}"
        if path.suffix == ".dcm":
            write_dicom(path, values)
        else:
            Image.fromarray(values).save(path)
        lines.append(f"scans/{path.name},{('healthy', 'ill')[ill]},p{i // 2:02d},{'fm'[i // 4 % 2]}")
    (root / name).write_text("\n".join(lines) + "\n")
    return root / name


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    pytest.importorskip("pydicom")
    kit = kits_of(tmp_path / "kits", trio_config("fedper", rounds=1, epochs=8, lr=0.1))["aster"]
    write_kit(kit)
    return kit


def test_the_commands_of_the_guide(kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """join, one round and the end in this process, then evaluate; watch has tests of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "write_onnx", lambda *_: False)  # takes seconds and is tested elsewhere
    monkeypatch.setattr(supervise, "check_before_start", lambda kit: None)
    monkeypatch.setattr(network, "check_data_in_child", network.check_data)
    monkeypatch.setattr(network.site_choices, "__defaults__", (None, None, network.check_data, None))
    monkeypatch.setattr(supervise, "supervise", lambda kit, show: True)
    write_scans(tmp_path)
    write_scans(tmp_path, "later.csv", 16)
    joined, at_other_threshold, later, sharing, watching = COMMANDS

    def run(command: str) -> str:
        program, *words = shlex.split(command)
        assert program == "ffl"
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (command, done.output, done.exception)
        return done.output

    assert "2 classes, " in run(joined)
    settings = read_settings(kit)
    assert settings.columns == COLUMNS
    assert settings.metrics == ()
    assert "the coordinator sees of your test images: brier, auroc." in run(sharing)
    settings = read_settings(kit)
    assert (settings.metrics, settings.columns) == (("brier", "auroc"), COLUMNS)

    site = Site(kit, settings.data, print, columns=settings.columns, report=False, metrics=settings.metrics)
    answer = site.answer(round_request(1))
    assert answer.fields["clinical"].keys() == {"brier", "auroc"}
    site.finish(alone=False)
    record = json.loads((kit.model / "metrics.json").read_text())
    assert {group["group"] for group in record["groups"]} == {"", "f", "m"}
    assert record["groups"][0]["accuracy"]["value"] == 1.0  # the classes are easy to tell
    card = (kit.model / "README.md").read_text()
    assert "| sex = f |" in card
    assert "with the window 1000/2000 (level/width) for more than 8 bits" in card

    assert "sensitivity at 0.3" in run(at_other_threshold)
    assert "16 test images" in run(later)
    assert json.loads((tmp_path / "later-metrics" / "metrics.json").read_text())["groups"][0]["images"] == 16
    for found in predict(
        kit.model, sorted((tmp_path / "scans").glob("later*"))
    ):  # by the model's window, DICOM as well
        number = int(found.image.stem[-4:])
        assert found.classes[0][0] == ("healthy", "ill")[number // 2 % 2]
    assert watching == f"ffl watch kits/{kit.party}"


def scenario_of(kit: Kit, data: Path, **columns: object) -> object:
    return site_scenario(kit, data, TableColumns(**{"label": "diagnosis", "image": "file", **columns}))


def test_each_mistake_in_the_data_is_one_sentence(kit: Kit, tmp_path: Path) -> None:
    table = write_scans(tmp_path, count=12)
    lines = table.read_text().splitlines()

    def other(name: str, *changed: str) -> Path:
        (tmp_path / name).write_text("\n".join(changed) + "\n")
        return tmp_path / name

    with pytest.raises(UserError, match=r"Row 4 of .*scans.csv' is a DICOM file without a window: choose one"):
        scenario_of(kit, table)
    for columns in ({"group": "person"}, {"subgroups": ("person",)}, {"split": "person"}, {"label": "person"}):
        with pytest.raises(UserError, match=r"Unknown column of .*scans.csv' 'person'"):
            scenario_of(kit, table, window="1000/2000", **columns)
    with pytest.raises(UserError, match=r"The window '40' must be LEVEL/WIDTH"):
        scenario_of(kit, table, window="40")
    missing = other("missing.csv", *lines, "scans/none.png,ill,p99,f")
    with pytest.raises(UserError, match=r"Row 13 of .* names the image '.*none.png', which does not exist"):
        scenario_of(kit, missing, window="1000/2000")
    parts = ["train"] * 7 + ["test"] * 5
    divided = other("divided.csv", f"{lines[0]},part", *(f"{a},{b}" for a, b in zip(lines[1:], parts, strict=True)))
    with pytest.raises(UserError, match=r"'p03' in the column 'patient' .* row 7 is for training, row 8 for test"):
        scenario_of(kit, divided, window="1000/2000", split="part", group="patient")
    empty = other("empty.csv", *lines[:-1], lines[-1].rpartition(",")[0] + ",")
    with pytest.raises(UserError, match=r"Row 12 of .*empty.csv' has no value in the column 'sex'"):
        scenario_of(kit, empty, window="1000/2000", subgroups=("sex",))
    with pytest.raises(UserError, match=r"is a folder, which has no columns"):
        scenario_of(kit, tmp_path / "scans")


def test_a_window_applies_to_a_folder_and_parquet_serves_as_csv_does(kit: Kit, tmp_path: Path) -> None:
    for i in range(12):
        path = tmp_path / "folder" / ("healthy", "ill")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 1500 * (i % 2), dtype=np.uint16)).save(path)
    with pytest.warns(UserWarning, match="nearly black"):
        plain = site_scenario(kit, tmp_path / "folder")
    windowed = site_scenario(kit, tmp_path / "folder", TableColumns(window="1000/2000"))
    assert plain.images.unique().tolist() == [0, 1500 * 255 // 65535]
    assert windowed.images.unique().tolist() == [0, round(255 * 1500 / 2000)]  # not those that the cache has

    table = write_scans(tmp_path)
    pq.write_table(pcsv.read_csv(table), tmp_path / "scans.parquet")
    one, other = (site_scenario(kit, path, COLUMNS) for path in (table, tmp_path / "scans.parquet"))
    assert one.images.equal(other.images)
    assert one.labels.equal(other.labels)
    assert one.clients[0].train.equal(other.clients[0].train)
