"""Configuration files with tables, the flat form, networks with options, data by name, and `ffl new`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from factorized_fl import api, cli
from factorized_fl.core.errors import UserError
from factorized_fl.sections import SECTIONS, flatten, nest
from tests.tiny import TABLE, tiny_config


def test_a_file_with_tables_is_the_flat_file(tmp_path: Path) -> None:
    flat = {**TABLE, "method": "factorized-fl", "options": {"tau": 0.3}}
    (tmp_path / "nested.toml").write_text(tomli_w.dumps(nest(flat)))
    (tmp_path / "flat.toml").write_text(tomli_w.dumps(flat))
    nested = api.configure(tmp_path / "nested.toml")
    with pytest.warns(UserWarning, match=r"has no tables: group its options below \[data\]"):
        assert api.configure(tmp_path / "flat.toml") == nested
    (tmp_path / "run.toml").write_text(nested.to_toml())  # the file of a run is flat and gives no hint
    assert api.configure(tmp_path / "run.toml") == nested


def test_every_section_has_options_of_a_run() -> None:
    known = set(vars(tiny_config()))
    assert not {option for options in SECTIONS.values() for option in options} - known


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[data]\nlr = 0.1", r"'lr' stands in \[data\]: write it below \[train\]"),
        ("rounds = 3\n[data]\nclients = 2", r"'rounds' stands outside .* below \[federation\]"),
        ("model = 'cnn'\n[data]\nclients = 2", r"stands beside tables: write a line \[model\], then name"),
        ("[model]\nname = 'cnn'\n[model.options]\nwidth = 2", "needs a network of yours"),
        ("[train]\nlearning = 3", "Unknown option 'learning'"),
        ("preset = 'demo'\n[tran]\nlr = 0.1", "Unknown table of a configuration file 'tran'. Did you mean 'train'"),
        ("[train]\nlr = 0.1\n[federated]\nrounds = 3", "Did you mean 'federation'"),
    ],
)
def test_a_wrong_place_is_named(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(UserError, match=words):
        api.configure(tmp_path / "a.toml")


def test_a_network_with_options() -> None:
    table = flatten({"model": {"name": "nets:Net", "options": {"width": 8, "kind": "a"}}})
    assert table == {"model": "nets:Net(kind='a', width=8)"}


def test_a_new_project_runs_and_its_test_passes(tmp_path: Path, monkeypatch, capsys) -> None:
    def ffl(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["ffl", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        found = capsys.readouterr()
        assert stop.value.code == 0, found.err
        return found.out

    assert "--load mynet.py" in ffl("new", str(tmp_path / "mine"))
    monkeypatch.chdir(tmp_path / "mine")
    assert "site" in ffl("--load", "mynet.py", "--load", "mydata.py", "run", "run.toml", "--out", "runs/one")
    run = api.RunDirectory("runs/one")
    assert run.config().model == "mynet:Net(width=8)"
    assert [client["name"] for client in run.clients()] == ["site 1", "site 2", "site 3"]
    assert run.summary() is not None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), "."])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_project.py"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
    monkeypatch.setattr("sys.argv", ["ffl", "new", str(tmp_path / "mine")])
    with pytest.raises(SystemExit):
        cli.main()
    assert "exists and is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", r"The data clinics:fails cannot be made \(KeyError: 'ward'\): correct it"),
        ("number", "clinics:number gives a int: let it return a list of ffl.ClientData"),
        ("two", "clinics:two gives 2 clients, but clients = 3: set clients to its number"),
        ("three", r"permuted = true has no effect on the clients that clinics:three gives: .* or set it to false"),
        ("nothing", r"The dataset 'clinics:nothing' cannot be imported \(AttributeError: 'clinics' has no 'nothing'\)"),
    ],
)
def test_data_by_name_that_cannot_be_made(name: str, words: str, tmp_path: Path, monkeypatch) -> None:
    text = "def fails():\n    return {}['ward']\n\ndef number():\n    return 3\n\ndef two():\n    return [1, 2]\n"
    text += "\ndef three():\n    return [1, 2, 3]\n"
    (tmp_path / "clinics.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "clinics", raising=False)
    with pytest.raises(UserError, match=words):
        api.run(api.configure("demo", dataset=f"clinics:{name}", clients=3), tmp_path / "run")
    assert not (tmp_path / "run").exists()
