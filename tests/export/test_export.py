"""A model to take away answers as the trained one does, in every form, and says how good it is."""

import json
import shutil
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image

from factorized_fl import api
from factorized_fl.core.errors import UserError
from factorized_fl.export import card, export, predict
from factorized_fl.export.clinical_report import clinical_report
from factorized_fl.export.package import load_network, read_package
from factorized_fl.results.rundir import Record, RunDirectory
from factorized_fl.simulate.build import Federation
from factorized_fl.simulate.own import Run
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.run import Stopped
from tests.own.nets import CASES, own_clients, rows, table_net
from tests.tiny import tiny_config, tiny_federation


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Path:
    out = tmp_path_factory.mktemp("runs")
    for method in ("factorized-fl", "stand-alone"):
        api.run(tiny_config(method, epochs=6), out / method, data=images)
    return out


def test_folded_and_onnx_models_answer_as_the_trained_one(run: Path, images: Path, tmp_path: Path) -> None:
    """Client 4 numbers five classes in its own way; all its test images give its own class names back."""
    exported = export.export_run(run / "factorized-fl", 4, tmp_path / "model", data=images, alone=run / "stand-alone")
    summary = RunDirectory(run / "factorized-fl").summary()
    assert summary is not None
    theirs = summary["clients"][3]
    assert (exported.correct, exported.images, exported.onnx) == (theirs["correct"], theirs["total"], True)
    assert exported.largest_difference < 1e-4
    assert exported.same_class == exported.images
    package = read_package(tmp_path / "model")
    assert package.classes == tuple(RunDirectory(run / "factorized-fl").clients()[3]["classes"])
    pixels = torch.randint(0, 256, (7, 1, 8, 8), dtype=torch.uint8)  # a number of images nobody exported for
    with torch.no_grad():
        onnx, plain = (predict.find_runtime(tmp_path / "model", runtime)(pixels) for runtime in ("onnx", "torch"))
    assert torch.equal(onnx.argmax(1), plain.argmax(1))
    torch.testing.assert_close(onnx, plain, atol=1e-4, rtol=0)
    file = tmp_path / "model" / "model.onnx"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UserError, match=r"model.onnx' cannot be read .* export it again"):
        predict.find_runtime(tmp_path / "model", "onnx")
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"{100 * exported.accuracy:.2f}%" in card
    assert exported.verdict is not None
    assert f"{100 * exported.verdict.reference:.2f}%" in card
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    assert about["results"]["verdict"] == exported.verdict.word == "undecided"
    assert "one seed cannot decide whether the federation helped" in card


@pytest.mark.parametrize("onnx", [True, False])
def test_the_code_on_the_card_runs_as_it_stands(
    run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, onnx: bool
) -> None:
    """Each block after the one that makes pixels gives the scores of the exported model."""
    if not onnx:
        monkeypatch.setattr(export, "write_onnx", lambda *_: False)
    export.export_run(run / "factorized-fl", 4, tmp_path / "model", data=images)
    monkeypatch.chdir(tmp_path / "model")
    text = Path("README.md").read_text()
    assert ("onnx" in text.lower()) is onnx
    usage = text.partition("## How to use it\n\n    ffl predict ")[2].partition("\nScores are")[0]
    begin, *ways = textwrap.dedent(usage[usage.index("\n") :]).strip().split("\n\n")
    assert len(ways) == 1 + onnx
    wanted = predict.find_runtime(Path(), "torch")(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)).detach()
    for way in ways:
        names: dict[str, Any] = {}
        exec(f"{begin}\n{way}", names)
        torch.testing.assert_close(torch.as_tensor(names["scores"]), wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {"model": "resnet9", "width": 0.125}),
        ("pfedpara", {}),
        ("without-mu", {"head_layers": 2, "head_norm": True}),
        ("stand-alone", {"head_layers": 2, "head_width": 24}),
        ("factorized-peers", {}),
        ("factorized-fl", {"options": {"match": "statistics"}}),
        ("per-fedavg", {"options": {"test": "adapted", "inner": 0.05}}),
    ],
)
def test_every_network_and_parametrisation(method: str, settings: dict, tmp_path: Path) -> None:
    """On all test images of the client: the same class from the trained, the folded and the ONNX model."""
    federation = tiny_federation(method, rounds=2, **settings)
    for round_number in (1, 2):
        run_round(federation, round_number)
    exported = export.export_client(federation, 2, 2, 2, tmp_path, "somebody")
    client, scenario = federation.scenario.clients[2], federation.scenario
    with torch.no_grad():
        read_back = predict.find_runtime(tmp_path, "torch")(scenario.images[client.test]).argmax(1)
    assert int((read_back == client.labelling[scenario.labels[client.test]]).sum()) == exported.correct
    assert exported.largest_difference < 1e-4
    assert exported.same_class == exported.images == len(federation.scenario.clients[2].test)
    test = federation.engine.evaluate(2, [2], federation.clients)[2]
    assert exported.correct == test.correct


@pytest.mark.parametrize("runtime", ["onnx", "torch"])
def test_predictions_carry_the_clients_own_class_names(run: Path, images: Path, tmp_path: Path, runtime: str) -> None:
    export.export_run(run / "factorized-fl", 1, tmp_path / "model", data=images)
    found = predict.predict(tmp_path / "model", [images / "bars" / "bars-0"], runtime)
    assert len(found) == 20
    assert sum(p.classes[0][0] == "bars-0" for p in found) > 10  # chance is a third
    assert all(sum(share for _, share in p.classes) == pytest.approx(1) for p in found)
    Image.new("RGB", (31, 57), "red").save(tmp_path / "odd.jpg")  # any size, any colour
    assert len(predict.predict(tmp_path / "model", [tmp_path / "odd.jpg"], runtime)[0].classes) == 3


def test_links_that_lead_back_are_not_followed_and_names_are_looked_up_first(
    run: Path, images: Path, tmp_path: Path
) -> None:
    export.export_run(run / "factorized-fl", 1, tmp_path / "model", data=images)
    shutil.copytree(images / "bars" / "bars-0", tmp_path / "pictures" / "inner")
    (tmp_path / "pictures" / "inner" / "again").symlink_to(tmp_path / "pictures")
    found = predict.predict(tmp_path / "model", [tmp_path / "pictures"])
    assert len(found) == len(list((images / "bars" / "bars-0").iterdir()))
    with pytest.raises(UserError, match="There is no image"):
        predict.predict(tmp_path / "model", [tmp_path / "pictures", tmp_path / "no.png"])


def test_one_bad_picture_in_a_folder_does_not_keep_the_others_waiting(run: Path, images: Path, tmp_path: Path) -> None:
    export.export_run(run / "factorized-fl", 1, tmp_path / "run" / "model" / "client-1", data=images)
    model = tmp_path / "run" / "model" / "client-1"
    with pytest.raises(UserError, match=r"did you mean '.*run/model/client-1'"):
        predict.predict(tmp_path / "run", [images / "bars" / "bars-0"])
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "bad.png").write_text("not a picture")
    with pytest.raises(UserError, match=r"None of the 1 images can be read; .*bad\.png"):
        predict.predict(model, [folder])
    Image.new("L", (9, 9), 200).save(folder / "good.png")
    with pytest.warns(UserWarning, match=r"bad\.png is left out, as it holds no readable image"):
        (found,) = predict.predict(model, [folder])
    assert found.image.name == "good.png"
    Image.new("F", (9, 9), 0.5).save(tmp_path / "deep.tif")
    with pytest.raises(
        UserError, match=r"deep\.tif has 32-bit or signed pixels, .*: save it with 8 or 16 bits, unsigned\.$"
    ):
        predict.predict(model, [tmp_path / "deep.tif"])


@pytest.mark.parametrize("change", [{"image_size": 16}, {"classes": ["one"]}])
def test_a_description_that_does_not_fit_the_model(run: Path, images: Path, tmp_path: Path, change: dict) -> None:
    export.export_run(run / "factorized-fl", 1, tmp_path / "model", data=images)
    file = tmp_path / "model" / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UserError, match="does not fit the model"):
        predict.predict(tmp_path / "model", [images / "bars" / "bars-0"], "onnx")


def test_a_model_from_before_its_classifier_had_a_width_can_be_used(run: Path, images: Path, tmp_path: Path) -> None:
    export.export_run(run / "factorized-fl", 1, tmp_path / "model", data=images)
    file = tmp_path / "model" / "model.json"
    content = json.loads(file.read_text())
    assert content.pop("head_width") == 0
    file.write_text(json.dumps(content))
    assert predict.predict(tmp_path / "model", [images / "bars" / "bars-0"], "torch")


def test_a_description_with_numbers_for_other_channels(run: Path, images: Path, tmp_path: Path) -> None:
    export.export_run(run / "factorized-fl", 1, tmp_path / "model", data=images)
    file = tmp_path / "model" / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"mean": [0.5, 0.5]}))
    with pytest.raises(UserError, match=r"model.json' is damaged.*mean and std must have a number for each channel"):
        predict.predict(tmp_path / "model", [images / "bars" / "bars-0"], "torch")


def test_a_model_is_not_exported_with_other_data(run: Path, images: Path, tmp_path: Path) -> None:
    shutil.copytree(images, tmp_path / "images")
    (tmp_path / "images" / "bars" / "bars-0").rename(tmp_path / "images" / "bars" / "else")
    with pytest.raises(UserError, match="started with other data"):
        export.export_run(run / "factorized-fl", 1, tmp_path / "model", data=tmp_path / "images")
    assert not (tmp_path / "model").exists()


def test_no_model_is_exported_with_other_pictures_under_the_same_names(run: Path, images: Path, tmp_path: Path) -> None:
    shutil.copytree(images, tmp_path / "images")
    file = sorted((tmp_path / "images" / "bars" / "bars-0").iterdir())[0]
    Image.new("L", (8, 8), 3).save(file)
    with pytest.raises(UserError, match=r"started with other data \(of client 2, the images are different\)"):
        export.export_run(run / "factorized-fl", 1, tmp_path / "model", data=tmp_path / "images")


def test_a_card_compares_with_a_model_that_was_trained_alone_for_as_long(
    run: Path, images: Path, tmp_path: Path
) -> None:
    api.run(tiny_config("stand-alone", epochs=1), tmp_path / "short", data=images)
    api.run(tiny_config("stand-alone", epochs=6, seed=2), tmp_path / "seed2", data=images)
    for alone, words in (
        (tmp_path / "short", "trained differently \\(epochs 1 instead of 6\\)"),
        (tmp_path / "seed2", "their seeds differ"),
        (run / "factorized-fl", "give a control, or a run of Stand-Alone"),
    ):
        with pytest.raises(UserError, match=words):
            export.export_run(run / "factorized-fl", 1, tmp_path / "model", data=images, alone=alone)
    assert not (tmp_path / "model").exists()


def test_a_card_gives_both_means_over_several_seeds(run: Path, images: Path, tmp_path: Path) -> None:
    """The accuracy of this model is that of one seed; the difference is that of the means."""
    done = RunDirectory(run / "factorized-fl")
    exported = export.export_run(done.path, 4, tmp_path / "model", data=images, alone=run / "stand-alone")
    assert exported.effect is not None
    assert exported.verdict is not None
    several = replace(exported, effect=replace(exported.effect, seeds=3))
    measured = clinical_report(torch.eye(2), torch.tensor([0, 1]), ("a", "b"))
    text = card.model_card(read_package(tmp_path / "model"), done.config(), 3, 48, several, "", measured)
    theirs, ours = (f"{100 * share:.2f}%" for share in (exported.verdict.reference, exported.verdict.accuracy))
    assert f"reached {theirs} on average over 3 seeds; with them this client's models reached {ours}.\n" in text
    assert "seed cannot decide" not in text


class StopAfterOne:
    """Leaves a run after its first round."""

    def started(self, federation: Federation, done: int) -> None: ...

    def client_done(self, round_number: int, client: int) -> None: ...

    def round_done(self, round_number: int, records: Sequence[Record]) -> None:
        raise Stopped


def test_a_card_says_how_far_the_run_was_and_what_was_scored(run: Path, images: Path, tmp_path: Path) -> None:
    """Of three rounds one is done, with one client of four."""
    config = tiny_config("fedavg", fraction=0.25, score="validation")
    with pytest.raises(Stopped):
        api.run(config, tmp_path / "run", data=images, observers=[StopAfterOne()])
    (trained,) = (record["client"] + 1 for record in RunDirectory(tmp_path / "run").metrics())
    exported = export.export_run(tmp_path / "run", trained, data=images)
    card = (exported.folder / "README.md").read_text()
    assert "1 of 3 rounds of 1 epochs" in card
    assert f"On {exported.images} validation images" in card
    with pytest.raises(UserError, match="has done 1 of 3 rounds: let it finish first"):
        export.export_run(tmp_path / "run", trained, data=images, alone=run / "stand-alone")
    with pytest.raises(UserError, match=f"Client {trained % 4 + 1} has not taken part in a round"):
        export.export_run(tmp_path / "run", trained % 4 + 1, data=images)


def test_a_model_that_diverged_is_not_exported(images: Path, tmp_path: Path) -> None:
    api.run(tiny_config("fedavg", lr=1e30), tmp_path / "run", data=images)
    with pytest.raises(UserError, match="training of client 1 diverged"):
        export.export_run(tmp_path / "run", 1, data=images)


def test_an_export_that_answers_differently_is_not_kept(run: Path, images: Path, tmp_path: Path, monkeypatch) -> None:
    def spoilt(model):
        folded = export_fold(model)
        with torch.no_grad():
            folded.head.bias[0] += 0.01
        return folded

    export_fold = export.fold
    monkeypatch.setattr(export, "fold", spoilt)
    with pytest.raises(UserError, match=r"differ from the trained model's by 0\.01"):
        export.export_run(run / "factorized-fl", 1, tmp_path / "model", data=images)
    assert not (tmp_path / "model" / "model.safetensors").exists()


def test_mistakes_are_one_sentence(run: Path, images: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no client 5: .* 1 to 4"):
        export.export_run(run / "factorized-fl", 5, data=images)
    with pytest.raises(UserError, match="no checkpoint"):
        export.export_run(tmp_path, 1)
    with pytest.raises(UserError, match="no exported model"):
        predict.predict(tmp_path, [tmp_path / "x.png"])
    export.export_run(run / "factorized-fl", 1, tmp_path / "model", data=images)
    (tmp_path / "no.png").write_text("not a picture")
    with pytest.raises(UserError, match=r"None of the 1 images can be read; .*no\.png"):
        predict.predict(tmp_path / "model", [tmp_path / "no.png"])
    with pytest.raises(UserError, match="no image to classify"):
        predict.predict(tmp_path / "model", [tmp_path / "model"])
    (tmp_path / "model" / "model.json").write_text("{}")
    with pytest.raises(UserError, match="damaged"):
        predict.predict(tmp_path / "model", [tmp_path / "no.png"])


def test_a_class_name_on_the_card_is_text(run: Path) -> None:
    """HTML, links and escape sequences of a class name must not reach the reader's browser or terminal."""
    shown = card._quote("<img src=x onerror=alert(1)> [a](http://b)\x1b[31m")
    assert not set(shown) & set("<>[]\x1b")
    assert shown.startswith('"&#60;img src=x')


@pytest.mark.parametrize(("correct", "at_chance"), [(60, True), (69, True), (70, False)])
def test_a_model_no_better_than_the_largest_class_is_at_chance(correct: int, at_chance: bool) -> None:
    """With 60 of 100 images in one class, two standard errors are 9.8 images."""
    exported = export.Exported(Path(), False, 100, 0.0, 100, correct, 0.6)
    assert exported.at_chance is at_chance


def own_run(out: Path, model: Any = table_net, make: Any = rows) -> Run:
    return api.run(own_clients(make), out, model=model, method="factorized-fl", rounds=1, epochs=1, batch_size=4)


@pytest.mark.parametrize("case", ["mlp", "vit", "series"])
def test_a_network_and_data_from_python_can_be_taken_away(case: str, tmp_path: Path) -> None:
    model, make = CASES[case]
    run = own_run(tmp_path / "run", model, make)
    with warnings.catch_warnings(action="ignore"):  # ONNX cannot hold the attention of this ViT for any batch
        assert api.export(run, 2, tmp_path / "model").onnx is (case != "vit")
    client = run.scenario.clients[1]
    inputs = run.scenario.images[client.test]
    numpy.save(tmp_path / "inputs.npy", inputs.numpy())
    wanted = torch.softmax(run.model(2)(run.inputs(inputs)).double(), 1).max(1).values
    for runtime in ("auto", "torch"):
        found = predict.predict(tmp_path / "model", [tmp_path / "inputs.npy"], runtime, factory=model)
        assert [each.row for each in found] == list(range(len(inputs)))
        assert [each.classes[0][1] for each in found] == pytest.approx(wanted.tolist(), abs=1e-4)
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"{model.__module__}:{model.__qualname__}" in card
    with pytest.raises(UserError, match="No installed package declares the model"):
        predict.predict(tmp_path / "model", [tmp_path / "inputs.npy"], "torch")
    numpy.save(tmp_path / "inputs.npy", numpy.zeros((2, 99), numpy.float32))
    with pytest.raises(UserError, match=r"inputs\.npy' holds float32 \[2, 99\], but this model takes .* \[N, "):
        predict.predict(tmp_path / "model", [tmp_path / "inputs.npy"], factory=model)


class NoOnnx(torch.nn.Module):
    """A network whose way depends on its input, which no export can follow."""

    def __init__(self, example: torch.Tensor, outputs: int) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(5, 4), torch.nn.Linear(4, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x) if x.sum().item() > 0 else self.body(-x))


def test_where_onnx_cannot_hold_a_network_one_sentence_says_so(tmp_path: Path) -> None:
    run = own_run(tmp_path / "run", NoOnnx)
    with pytest.warns(
        UserWarning, match=r"^ONNX cannot hold the network .*NoOnnx \(.*\): use model\.safetensors"
    ) as said:
        exported = api.export(run, 1, tmp_path / "model")
    assert len(said) == 1
    assert not exported.onnx
    assert not (tmp_path / "model" / "model.onnx").exists()
    weights = load_network(tmp_path / "model", read_package(tmp_path / "model"), NoOnnx).state_dict()
    assert all(weights[name].equal(tensor) for name, tensor in run.model(1).state_dict().items())
