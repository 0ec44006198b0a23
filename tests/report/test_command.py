"""The command on the page must make the same configuration again."""

import shlex
import tomllib
from dataclasses import dataclass
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from factorized_fl import api
from factorized_fl.config import Config
from factorized_fl.core.options import option
from factorized_fl.core.toml_text import parse_setting
from factorized_fl.methods import METHODS
from factorized_fl.methods.stand_alone import StandAlone
from factorized_fl.presets import PRESETS
from factorized_fl.report.command import command_of, comparison_command
from factorized_fl.results.entries import parse_entry, split_entries
from factorized_fl.results.reading import RunFiles, read_run
from tests.tiny import tiny_config


def table(config: Config) -> dict[str, Any]:
    return tomllib.loads(config.to_toml())


def obeyed(command: str) -> Config:
    words = shlex.split(command)
    assert words[:2] == ["ffl", "run"]
    settings = [parse_setting(words[i + 1]) for i, word in enumerate(words) if word == "--set"]
    return api.configure(words[2], words[words.index("--method") + 1], **dict(settings))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", METHODS)
def test_a_preset_needs_no_settings(preset: str, method: str) -> None:
    config = api.configure(preset, method)
    command = command_of(table(config))
    data = " --data FOLDER" if config.dataset == "folder" else ""
    assert command == f"ffl run {preset} --method {method}{data}"
    assert obeyed(command) == config


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": 3, "lr": 1e-5, "permuted": False},
        {"tau": -0.25, "l1": False, "prune": "round"},
        {"clients": 6, "clients_per_domain": [1, 2, 3], "augment": "paper"},
        {"dataset": "true"},  # a word that would be read as something else
    ],
)
def test_what_differs_from_the_preset_is_set(settings: dict[str, Any]) -> None:
    config = api.configure("demo", "factorized-fl", **settings)
    command = command_of(table(config))
    assert command is not None
    assert command.count("--set") == len(settings)
    assert obeyed(command) == config


def test_the_same_scenario_alone() -> None:
    config = api.configure("demo", "factorized-fl", rounds=3, tau=0.9)
    assert command_of(table(config), "stand-alone") == "ffl run demo --method stand-alone --set rounds=3"


def test_without_a_preset_the_runs_own_file_and_the_data_are_named() -> None:
    command = command_of(table(tiny_config()), file="my run/config.toml")
    assert command == "ffl run 'my run/config.toml' --data FOLDER"


def test_a_configuration_that_is_not_valid_gives_no_command() -> None:
    assert command_of({"rounds": -1}) is None
    assert command_of({"unheard": "of"}) is None


def test_a_method_of_ones_own_has_to_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(StandAlone):
        name = "mine"

    monkeypatch.setitem(METHODS, "mine", Mine)
    assert command_of(table(api.configure("demo", "mine"))) == "ffl --load FILE.py run demo --method mine"
    assert command_of(table(api.configure("demo", "mine")), "fedavg") == "ffl run demo --method fedavg"


def test_a_method_that_is_not_loaded_now_is_set_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its defaults are unknown then; what the run set besides is still checked and compared with the preset."""

    @dataclass(frozen=True)
    class Mine(StandAlone):
        name = "mine"
        strength: float = option(0.5, "how much")

    with monkeypatch.context() as patch:
        patch.setitem(METHODS, "mine", Mine)
        config = api.configure("demo", "mine", rounds=3)
        written, own = table(config), table(tiny_config("mine"))
    command = command_of(written)
    assert command is not None
    load = "ffl --load FILE.py run"
    assert command == f"{load} demo --method mine --set rounds=3 --set strength=0.5"
    with monkeypatch.context() as patch:
        patch.setitem(METHODS, "mine", Mine)
        assert obeyed(command.replace(" --load FILE.py", "")) == config
    assert command_of(written, "fedavg") == "ffl run demo --method fedavg --set rounds=3"
    assert command_of(own, file="a/config.toml") == f"{load} a/config.toml --data FOLDER"
    assert command_of(written | {"rounds": -1}) is None
    assert command_of(written | {"options": {"strength": date(2025, 1, 1)}}) is None


def kept(path: Path, config: Config) -> RunFiles:
    path.mkdir()
    (path / "config.toml").write_text(config.to_toml())
    return read_run(path)


def planned(command: str) -> list[Config]:
    words = shlex.split(command)
    assert words[:2] == ["ffl", "compare"]
    settings = dict(parse_setting(words[i + 1]) for i, word in enumerate(words) if word == "--set")
    entries = [parse_entry(text) for text in split_entries(words[words.index("--methods") + 1])]
    seeds = map(int, words[words.index("--seeds") + 1].split(","))
    both = product(entries, seeds)
    return [api.configure(words[2], entry.method, **entry.settings(settings), seed=seed) for entry, seed in both]


def test_a_comparison_is_one_command(tmp_path: Path) -> None:
    configs = [
        api.configure("demo", method, seed=seed, rounds=2)
        for method in ("stand-alone", "factorized-fl")
        for seed in (1, 2)
    ]
    command = comparison_command([kept(tmp_path / str(at), config) for at, config in enumerate(configs)])
    assert command == "ffl compare demo --methods stand-alone,factorized-fl --seeds 1,2 --set rounds=2"
    assert planned(command) == configs


def test_settings_of_some_runs_stand_behind_the_name_of_their_method(tmp_path: Path) -> None:
    configs = [
        api.configure("demo", "fedavg", rounds=2),
        api.configure("demo", "fedavg", rounds=2, lr=0.1, epochs=1),
        api.configure("demo", "factorized-fl", rounds=2, tau=0.9),
    ]
    runs = [kept(tmp_path / str(at), config) for at, config in enumerate(configs)]
    command = comparison_command(runs)
    methods = "fedavg,fedavg:epochs=1:lr=0.1,factorized-fl:tau=0.9"
    assert command == f"ffl compare demo --methods {methods} --seeds 1 --set rounds=2"
    assert planned(command) == configs
    own = kept(tmp_path / "own", api.configure("demo", "fedavg", rounds=2, loss="squared-error", metrics=["r2", "mae"]))
    assert comparison_command([*runs, own]) is None  # a comma would end the entry
