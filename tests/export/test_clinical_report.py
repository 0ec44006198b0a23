"""Clinical metrics of an exported model: in its folder, on its card, on new images, and for subgroups."""

import csv
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from factorized_fl.cli import app
from factorized_fl.core.errors import UserError
from factorized_fl.export import export
from factorized_fl.export.clinical_report import clinical_report, measured_words, write_clinical
from factorized_fl.export.evaluate import check_threshold, evaluate_model
from factorized_fl.export.export import Exported
from factorized_fl.silo.evaluation import evaluate_folder
from factorized_fl.tasks.clinical import Measured
from tests.silo.parties import write_images
from tests.tiny import tiny_federation, tiny_set

SCORES = torch.tensor([[4.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 3.0]])
LABELS = torch.tensor([0, 1, 1, 1])


def test_files_hold_every_number_and_undefined_ones_are_empty(tmp_path: Path) -> None:
    report = clinical_report(SCORES, LABELS, ("healthy", "ill"), subgroups={"sex": ["f", "f", "m", "m"]})
    write_clinical(report, tmp_path)
    record = json.loads((tmp_path / "metrics.json").read_text())
    whole, women, men = record["groups"]
    assert whole["accuracy"]["value"] == 0.75
    assert whole["confusion"] == [[1, 0], [1, 2]]
    assert [(g["column"], g["group"], g["images"]) for g in (whole, women, men)] == [
        ("", "", 4),
        ("sex", "f", 2),
        ("sex", "m", 2),
    ]
    assert (women["accuracy"]["value"], men["accuracy"]["value"]) == (1, 0.5)
    assert men["classes"][0]["auroc"]["value"] is None  # no man is healthy
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (sensitivity,) = [row for row in rows if (row["group"], row["class"], row["metric"]) == ("", "ill", "sensitivity")]
    assert (float(sensitivity["value"]), sensitivity["cases"]) == (pytest.approx(2 / 3), "3")
    (area,) = [row for row in rows if (row["group"], row["class"], row["metric"]) == ("m", "healthy", "auroc")]
    assert (area["value"], area["low"]) == ("", "")
    assert len(rows) == 3 * (4 + 2 * 3)


def test_few_cases_are_named_for_all_and_for_each_subgroup() -> None:
    labels = torch.tensor([0] * 25 + [1] * 19)
    report = clinical_report(
        torch.randn(44, 2), labels, ("healthy", "ill"), subgroups={"site": ["a"] * 22 + ["b"] * 22}
    )
    assert report.warnings == [
        "Fewer than 20 cases: ill (19); their metrics are uncertain.",
        "In the subgroup site = a, fewer than 20 cases: ill (0); their metrics are uncertain.",
        "In the subgroup site = b, fewer than 20 cases: healthy (3), ill (19); their metrics are uncertain.",
    ]


def test_a_column_of_many_values_is_refused() -> None:
    with pytest.raises(UserError, match="column 'patient' has 51 different values, and at most 50 can be subgroups"):
        clinical_report(
            torch.zeros(51, 2),
            torch.zeros(51, dtype=torch.int64),
            ("a", "b"),
            subgroups={"patient": [*map(str, range(51))]},
        )


def test_words() -> None:
    nan = float("nan")
    assert measured_words(Measured(0.9, 0.8, 0.95, 10)) == "0.900 (0.800 to 0.950)"
    assert measured_words(Measured(1.0, nan, nan, 10)) == "1.000 (no interval)"
    assert measured_words(Measured(nan, nan, nan, 0)) == "undefined"
    with pytest.raises(UserError, match=r"threshold = 1 must be a probability above 0 and below 1"):
        check_threshold(1.0)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    federation = tiny_federation("stand-alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "write_onnx", lambda *_: False)  # takes seconds and is tested elsewhere
        return export.export_client(federation, 0, 0, 0, tmp_path_factory.mktemp("exported") / "model", "client 1")


def test_an_exported_model_has_its_metrics_beside_it_and_on_its_card(exported: Exported) -> None:
    whole = json.loads((exported.folder / "metrics.json").read_text())["groups"][0]
    assert whole["accuracy"]["value"] == pytest.approx(exported.accuracy)
    assert whole["images"] == exported.images
    card = (exported.folder / "README.md").read_text()
    assert f"| accuracy | {whole['accuracy']['value']:.3f} (" in card
    assert "**Warning**: Fewer than 20 cases: " in card


def test_evaluation_on_new_images(exported: Exported, tmp_path: Path) -> None:
    """Split images are tested on their test part only, whatever the order of their class folders."""
    classes = json.loads((exported.folder / "model.json").read_text())["classes"]
    images = tiny_set("row", len(classes), 40, seed=5)
    renamed = type(images)(images.name, images.images, images.labels, tuple(sorted(classes)))
    for part in ("train", "test"):
        write_images(tmp_path / "split" / part, renamed)
    found = evaluate_model(exported.folder, tmp_path / "split")
    assert found.whole.cases == 40
    assert found.classes == tuple(classes)
    cases = {name: int((renamed.labels == renamed.classes.index(name)).sum()) for name in classes}
    assert {name: each.cases for name, each in zip(classes, found.whole.classes, strict=True)} == cases
    with pytest.warns(UserWarning, match="has no test images of its own, so all 40 are used"):
        assert evaluate_model(exported.folder, tmp_path / "split" / "test").whole == found.whole
    words = ["evaluate", exported.folder, "--data", tmp_path / "split", "--out", tmp_path / "out"]
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 0
    assert "balanced accuracy" in done.stdout
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["groups"][0]["images"] == 40
    write_images(tmp_path / "other", tiny_set("row", 2, 8))
    with pytest.raises(UserError, match=r"has images of the class '.*', which the model does not know"):
        evaluate_model(exported.folder, tmp_path / "other")


def test_a_run_directory_is_not_taken_for_an_exported_model(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(UserError, match="is a run: export a client's model with `ffl export"):
        evaluate_folder(tmp_path)
