"""The control of a run: which run it is, that methods share it only where it gives the same bits, where it is kept."""

import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

import factorized_fl as ffl
from factorized_fl.config import Config
from factorized_fl.methods import METHODS
from factorized_fl.results.comparison import run_folder
from factorized_fl.results.control import control_of
from factorized_fl.results.entries import parse_entry, plan_runs
from factorized_fl.results.reading import read_run
from factorized_fl.results.references import effect_beside, find_control
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.rounds import run_round
from tests.test_cli import ffl as command
from tests.tiny import tiny_config, tiny_scenario, write_config

SHARED = [name for name, method in METHODS.items() if method.card.control]
CHANGED = {"head": "reset", "l1": False, "prune": "round", "head_mu": "xavier", "sequential": True, "tau": 0.0}


def trained(config: Config, rounds: int = 3) -> dict[str, torch.Tensor]:
    federation = build_federation(config, tiny_scenario(config), torch.device("cpu"))
    for round_number in range(1, rounds + 1):
        run_round(federation, round_number)
    return federation.clients.state.flat("state")


@pytest.mark.parametrize("permuted", [True, False])
@pytest.mark.parametrize("method", SHARED)
def test_a_control_that_methods_share_has_the_bits_of_each_methods_own(method: str, permuted: bool) -> None:
    names = {field.name for field in fields(METHODS[method])}
    options = {} if permuted else {name: value for name, value in CHANGED.items() if name in names}
    settings = {} if permuted else {"fraction": 0.5, "dropout": 0.2}
    config = tiny_config(method, permuted=permuted, options=options, **settings)
    assert control_of(config).method != method
    own, shared = trained(replace(config, control=True)), trained(control_of(config))
    for name, tensor in shared.items():
        assert torch.equal(own[name], tensor), name


def test_methods_that_differ_in_training_have_controls_of_their_own() -> None:
    for method in set(METHODS) - set(SHARED):
        found = control_of(tiny_config(method))
        assert (found.method, found.control) == (method, method != "stand-alone")
    assert control_of(tiny_config("factorized-fl", lr=0.5)) != control_of(tiny_config("factorized-fl"))
    assert control_of(control_of(tiny_config())) == control_of(tiny_config())


def test_a_method_of_ones_own_has_its_own_control_whatever_it_inherits() -> None:
    class Mine(METHODS["fedavg"]):
        name = "mine"

    try:
        assert ffl.register(Mine).card.control == ""
    finally:
        METHODS.pop("mine", None)


def planned(*entries: str, **settings: object) -> dict[str, tuple[list[str], list[str]]]:
    configs = {}
    for text in entries:
        entry = parse_entry(text)
        options = {k: v for k, v in entry.own.items() if k == "tau"}
        own = {k: v for k, v in entry.own.items() if k != "tau"}
        configs[entry.name, 1] = tiny_config(entry.method, options=options, **own, **settings)
    return {run.folder: (run.entries, run.controls) for run in plan_runs(configs)}


def test_a_comparison_runs_each_control_once() -> None:
    assert planned("stand-alone", "fedavg", "factorized-fl", "factorized-fl:tau=0.9", "fedprox") == {
        "stand-alone-seed1": (["stand-alone"], ["fedavg"]),
        "fedavg-seed1": (["fedavg"], []),
        "factorized-fl-seed1": (["factorized-fl"], []),
        "factorized-fedavg-control-seed1": ([], ["factorized-fl", "factorized-fl:tau=0.9"]),
        "factorized-fl-tau=0.9-seed1": (["factorized-fl:tau=0.9"], []),
        "fedprox-seed1": (["fedprox"], []),
        "fedprox-control-seed1": ([], ["fedprox"]),
    }
    assert list(planned("fedavg", "fedavg:lr=0.5")) == [
        *("fedavg-seed1", "stand-alone-control-seed1"),
        *("fedavg-lr=0.5-seed1", "stand-alone-lr=0.5-control-seed1"),
    ]
    assert planned("fedavg", control=True) == {"fedavg-seed1": (["fedavg"], [])}


def test_two_controls_of_one_name_have_two_folders() -> None:
    configs = {
        ("factorized-fl", 1): tiny_config("factorized-fl"),
        ("factorized-fl-beta", 1): tiny_config("factorized-fl-beta", options={"l1": False}),
    }
    folders = [run.folder for run in plan_runs(configs)]
    assert folders[1::2] == ["factorized-fedavg-control-seed1", "factorized-fl-beta-control-seed1"]
    assert len(plan_runs(configs, control=False)) == 2


def test_a_comparison_has_its_controls_and_continues_them(capsys, images: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "tiny.toml", rounds=2)
    begun = ["compare", config, "--methods", "fedprox,factorized-fl", "--seeds", "1,2", "--data", images]
    begun += ["--out", tmp_path / "c"]
    code, out, _ = command(capsys, *begun)
    assert code == 0
    assert "run 8/8, Factorized-FedAvg, control, seed 2: round 2/2" in out
    assert "FedProx: " in out
    control = tmp_path / "c" / run_folder("fedprox-control", 1)
    before, kept = (control / "metrics.jsonl").read_bytes(), (tmp_path / "c" / "comparison.json").read_bytes()
    shutil.rmtree(control)
    code, _, _ = command(capsys, *begun, "--resume", "--quiet")
    assert code == 0
    assert ((control / "metrics.jsonl").read_bytes(), (tmp_path / "c" / "comparison.json").read_bytes()) == (
        before,
        kept,
    )
    run = read_run(tmp_path / "c" / "fedprox-seed1")
    beside = find_control(run, [])
    assert beside is not None
    assert beside.path == control.resolve()
    effect = effect_beside(run)
    assert effect is not None
    assert (effect.seeds, effect.over) == (2, "its control")
    assert RunDirectory(control).config().control


def test_one_round_helps_and_harms_no_client(capsys, tmp_path: Path) -> None:
    """In the first round nothing has been received, so that every method is its control."""
    small = ["rounds=1", "epochs=1", "images_per_client=16", "test_images=20", "width=0.25", "clients=3"]
    settings = [word for setting in small for word in ("--set", setting)]
    code, out, _ = command(capsys, "demo", *settings, "--out", tmp_path / "demo")
    assert code == 0
    said = " ".join(out.split())
    for title in ("FedAvg", "Factorized-FL", "Factorized-Peers"):
        assert f"{title}: +0.0 points (95% interval -" in said
    assert said.count("3 seeds: of 3 clients it helped 0 and harmed 0; 3 undecided.") == 3
