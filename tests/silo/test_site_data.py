"""Sites with tables of vectors, series, token ids and images: every method gives the results of one process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import factorized_fl as ffl
from factorized_fl.cli import network
from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.data.clients import own_scenario
from factorized_fl.export.predict import predict
from factorized_fl.methods import METHODS
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import NOISE_SEED, Kit, read_agreement, write_kit
from factorized_fl.silo.columns import TableColumns
from factorized_fl.silo.kits import readme
from factorized_fl.silo.pinned import check_model, pin_model
from factorized_fl.silo.settings import Settings, read_settings, save_settings
from factorized_fl.silo.site import Site
from factorized_fl.silo.site_data import site_scenario
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.rounds import run_round
from tests.own.nets import CASES, own_clients
from tests.silo.loopback import Loopback
from tests.silo.parties import NAMES, kits_of, trio_config

KINDS: dict[str, dict[str, Any]] = {
    "cnn": {"inputs": "float32 2x8x12"},
    "vit": {"image_size": 8, "channels": 3},
    "series": {"inputs": "float32 2x20"},
    "mlp": {"inputs": "float32 5"},
    "transformers": {"inputs": "int64 6"},
}
COLUMNS = TableColumns(label="diagnosis", features=("x",), split="part")
VECTOR = [f"f{i}" for i in range(5)]
SERVING = [name for name, method in METHODS.items() if not method.needs_agreeing_labels]
SOME = ("fedavg", "factorized-peers", "pfedpara", "scaffold")

RUNS = [
    pytest.param(method, case, marks=() if method in SOME or case in ("mlp", "series") else pytest.mark.network_full)
    for method in SERVING
    for case in CASES
]
REFUSED = {("fedap", case): "no BatchNorm" for case in CASES if case != "series"}
REFUSED |= {(method, "mlp"): "the network has none" for method in ("fedap", "fedbn")}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that declares the networks of tests/own/nets.py."""
    info = tmp_path / "site-packages" / "ownnets.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ownnets\nVersion: 1.0\n")
    lines = [f"{case} = {model_of(case)}" for case in CASES]
    (info / "entry_points.txt").write_text("\n".join(["[factorized_fl.models]", *lines, ""]))
    monkeypatch.syspath_prepend(info.parent)


def model_of(case: str) -> str:
    return f"tests.own.nets:{CASES[case][0].__name__}"


def write_tables(case: str, folder: Path) -> dict[str, Path]:
    """The file of each site: CSV for vectors, npz for anything else, with a column of classes and one of the split."""
    folder.mkdir(exist_ok=True)
    files = {}
    for name, client in zip(NAMES, own_clients(CASES[case][1]), strict=True):
        x, y = (
            np.concatenate([np.asarray(a), np.asarray(b)])
            for a, b in zip((client.x, client.y), client.test, strict=True)
        )
        part = np.array(["train"] * len(client.y) + ["test"] * (len(y) - len(client.y)))
        if case == "mlp":
            files[name] = folder / f"{name}.csv"
            rows = [
                ",".join([*map(repr, map(float, row)), f"class {c}", p]) for row, c, p in zip(x, y, part, strict=True)
            ]
            files[name].write_text("\n".join([",".join([*VECTOR, "diagnosis", "part"]), *rows]))
        else:
            files[name] = folder / f"{name}.npz"
            np.savez(files[name], x=x, diagnosis=np.array([f"class {c}" for c in y]), part=part)
    return files


def kits_for(case: str, root: Path, method: str = "factorized-fl") -> tuple[Config, dict[str, Kit]]:
    kind = {"image_size": 0, "channels": 0, **KINDS[case], "model": model_of(case), "width": 1.0}
    config = trio_config(method, rounds=2, batch_size=4, **kind)
    limit = {"change_limit": 0.0, "features": tuple(VECTOR) if case == "mlp" else ()}
    kits = kits_of(root, config, **limit)
    agreement = pin_model(kits[COORDINATOR].agreement, config)
    return config, {party: replace(kit, agreement=agreement) for party, kit in kits.items()}


def columns_of(case: str) -> TableColumns:
    return replace(COLUMNS, features=()) if case == "mlp" else COLUMNS  # the agreement names those of vectors


@pytest.mark.parametrize(("method", "case"), RUNS)
def test_sites_with_tables_equal_one_process(method: str, case: str, tmp_path: Path) -> None:
    if case == "transformers":
        pytest.importorskip("transformers")
    files, (config, kits) = write_tables(case, tmp_path / "data"), kits_for(case, tmp_path, method)
    for site in NAMES:  # one process draws all noise from the seed that all know
        (kits[site].path / NOISE_SEED).write_text(str(config.seed))
    if (method, case) in REFUSED:
        with pytest.raises(UserError, match=REFUSED[method, case]):
            Site(kits["aster"], files["aster"], print, columns=columns_of(case), report=True)
        return
    sites = {name: Site(kits[name], files[name], print, columns=columns_of(case), report=True) for name in NAMES}
    assert Loopback(kits, sites).run()

    found = []
    for name, file in files.items():
        (client,) = ffl.from_file(file, label="diagnosis", features=VECTOR if case == "mlp" else "x", split="part")
        found.append(replace(client, name=name))
    scenario = replace(own_scenario(found, seed=config.seed), labels_agree=False)
    federation = build_federation(config, scenario, torch.device("cpu"))
    wanted = [record for number in (1, 2) for record in run_round(federation, number)[0]]
    for k, site in enumerate(sites.values()):
        own, theirs = site.federation.clients.state.client(0), federation.clients.state.client(k)
        for tensor in own:
            torch.testing.assert_close(own[tensor], theirs[tensor], rtol=0, atol=1e-6, msg=tensor)
    got = RunDirectory(kits[COORDINATOR].run).metrics()
    assert [record["correct"] for record in got] == [record["correct"] for record in wanted]
    assert len(got) == 6


def test_a_site_splits_a_table_by_its_seat_and_exports_its_model(tmp_path: Path) -> None:
    files, (_, kits) = write_tables("series", tmp_path / "data"), kits_for("series", tmp_path, "fedavg")
    whole = TableColumns(label="diagnosis", features=("x",))
    alike = {name: site_scenario(kits[name], files["birch"], whole) for name in NAMES}
    assert [len(part) for part in _parts(alike["aster"])] == [11, 4, 4]
    assert not torch.equal(_parts(alike["aster"])[0], _parts(alike["cedar"])[0])
    sites = {name: Site(kits[name], files[name], print, columns=whole, report=False) for name in NAMES}
    assert Loopback(kits, sites).run()
    exported = sites["cedar"].finish(alone=False)
    assert exported is not None
    assert exported.onnx
    assert "ownnets 1.0" in (kits["cedar"].model / "README.md").read_text()
    x = np.load(files["cedar"])["x"].astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    assert len(predict(kits["cedar"].model, [tmp_path / "x.npy"], "onnx")) == len(x)


def _parts(scenario: Any) -> list[torch.Tensor]:
    (client,) = scenario.clients
    return [client.train, client.validation, client.test]


def test_data_of_another_kind_is_refused_before_any_round(tmp_path: Path) -> None:
    files, (_, kits) = write_tables("series", tmp_path / "data"), kits_for("mlp", tmp_path)
    vectors = write_tables("mlp", tmp_path / "data")
    kit = kits["aster"]
    table = vectors["aster"]
    with pytest.raises(UserError, match=r"aster are float32 2x20 each, but trio trains on float32 5: name other col"):
        site_scenario(kit, files["aster"], COLUMNS)
    with pytest.raises(UserError, match="aster are float32 2 each, but trio trains on float32 5"):
        site_scenario(kit, table, TableColumns(label="diagnosis", features=("f0", "f1")))
    with pytest.raises(UserError, match=r"trio trains on inputs float32 5, but '.*' is a folder: give a table"):
        site_scenario(kit, tmp_path, TableColumns())
    with pytest.raises(UserError, match=r"Unknown column of '.*aster.csv' 'label'\. Known: .*diagnosis"):
        site_scenario(kit, table, TableColumns())
    with pytest.raises(UserError, match=r"There is no file '.*nowhere\.csv'"):
        site_scenario(kit, tmp_path / "nowhere.csv", TableColumns())
    _, images = kits_for("vit", tmp_path)
    with pytest.raises(UserError, match="is a table: name its column of images with image=, or its columns of numbers"):
        site_scenario(images["aster"], files["aster"], TableColumns())
    with pytest.raises(UserError, match=r"aster are float32 2x20 each, but trio trains on images of 3 x 8 x 8"):
        site_scenario(images["aster"], files["aster"], COLUMNS)
    with pytest.raises(UserError, match="is a folder, which has no columns: name none, or give a table"):
        site_scenario(images["aster"], tmp_path, COLUMNS)


def test_an_agreement_names_columns_or_the_kind_of_inputs(tmp_path: Path) -> None:
    def agree(lines: str, model: str = model_of("mlp")) -> tuple[Any, Config]:
        file = tmp_path / "sites.toml"
        sites = '[[sites]]\nname = "a"\n[[sites]]\nname = "b"\n'
        file.write_text(f'name = "trio"\nmodel = "{model}"\n{lines}\n{sites}')
        return read_agreement(file)

    agreement, config = agree('features = ["age", "weight"]')
    assert (config.inputs, config.augment, agreement.features) == ("float32 2", "none", ("age", "weight"))
    assert "inputs float32 2, the columns age, weight" in readme("a", agreement, config)
    assert pin_model(agreement, config).tensors[0] == "0.weight float32 8x2"
    assert agree('inputs = "int64 6"')[1].inputs == "int64 6"
    for lines, match in {
        "": "must set image_size and channels to 1 or 3: all .*; for other inputs than images set inputs or features",
        'inputs = "2x20"': r"inputs = '2x20' must be a type, float32 or int64, and a shape, as in",
        'inputs = "float32 0x2"': "must be a type",
        'inputs = "float32 5"\nimage_size = 8': "sets image_size, but inputs = 'float32 5' are no images",
        'inputs = "float32 5"\naugment = "paper"': "augment = 'paper', which needs images",
        'inputs = "float32 5"\nfeatures = ["a", "b"]': "names 2 features, but inputs = 'float32 5'",
    }.items():
        with pytest.raises(UserError, match=match):
            agree(lines)
    with pytest.raises(UserError, match="has the network cnn, which takes images, not inputs float32 2"):
        agree('features = ["a", "b"]', "cnn")


def test_an_agreement_cannot_name_functions(tmp_path: Path) -> None:
    """An agreement comes from another party: `os:system` must never be called on its word."""
    _, kits = kits_for("mlp", tmp_path)
    for option in ("optimizer", "schedule", "augment", "loss"):
        kit = replace(kits["aster"], table={**kits["aster"].table, option: "os:abort"})
        with pytest.raises(
            UserError, match=f"{option} = 'os:abort' is a function, which other parties would have to call"
        ):
            check_model(kit)
    kit = replace(kits["aster"], table={**kits["aster"].table, "metrics": ["os:abort"]})
    with pytest.raises(UserError, match="metrics = 'os:abort' is a function"):
        Site(kit, write_tables("mlp", tmp_path / "data")["aster"], print, columns=columns_of("mlp"), report=False)


def test_a_site_keeps_its_columns(tmp_path: Path) -> None:
    files, (_, kits) = write_tables("series", tmp_path / "data"), kits_for("series", tmp_path)
    kit = kits["aster"]
    write_kit(kit)
    named = {"label": "diagnosis", "features": ("x",), "split": "part"}

    def choose(data: Path | None, columns: dict[str, Any]) -> Settings:
        return network.site_choices(kit, data, None, None, "cpu", columns=columns, check=network.check_data)

    save_settings(kit, choose(files["aster"], named))
    assert read_settings(kit).columns == COLUMNS
    assert choose(None, {}).columns == COLUMNS
    with pytest.raises(UserError, match=r"Unknown column of '.*' 'prat'"):
        choose(None, {"split": "prat"})
    table = (kit.path / "site.toml").read_text().replace("features", "featuers")
    (kit.path / "site.toml").write_text(table)
    with pytest.raises(UserError, match="featuers"):
        read_settings(kit)


def test_numbers_to_predict_are_refused_at_a_site(tmp_path: Path) -> None:
    _, kits = kits_for("mlp", tmp_path)
    np.savez(tmp_path / "data.npz", x=np.zeros((20, 5)), dose=np.linspace(0, 1, 20))
    with pytest.raises(UserError, match="labels of aster are numbers to predict, which only simulations support"):
        site_scenario(kits["aster"], tmp_path / "data.npz", TableColumns(label="dose", features=("x",)))
