"""Profiles, the option `recalibrate`, and runs of versions that had neither."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from factorized_fl.api import configure, run
from factorized_fl.config import Config, from_table, resolve, upgrade
from factorized_fl.core.errors import UserError
from factorized_fl.methods import METHODS
from factorized_fl.presets import PRESETS
from factorized_fl.profiles import PROFILES, profile_settings
from factorized_fl.results.reading import read_run
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.run import run_federation
from tests.tiny import TABLE, tiny_config, tiny_federation, tiny_scenario

RESULTS = Path(__file__).parents[1] / "results"
PAPERS = tuple(name for name in PRESETS if name.startswith(("cifar10", "svhn")))


def test_a_profile_fills_in_what_preset_and_user_leave_open(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = {"recalibrate": True, "lr": 0.5, "methods": {"fedprox": {"lr": 0.25, "proximal": 0.125}}}
    monkeypatch.setitem(PROFILES, "tuned", tuned)  # type: ignore[index]
    table = {"dataset": "mnist"}
    assert resolve(table, "fedavg").lr == 0.5
    found = resolve(table, "fedprox")
    assert (found.profile, found.recalibrate, found.lr, found.options["proximal"]) == ("tuned", True, 0.25, 0.125)
    assert resolve({**table, "lr": 0.75}, "fedprox").lr == 0.75
    assert resolve({**table, "methods": {"fedprox": {"proximal": 1.0}}}, "fedprox").options["proximal"] == 1.0
    given = resolve(table, "fedprox", {"lr": 2.0, "proximal": 3.0, "recalibrate": False})
    assert (given.lr, given.options["proximal"], given.recalibrate) == (2.0, 3.0, False)
    assert resolve({**table, "model": "package.module:factory"}, "fedprox").lr == Config.lr
    bare = resolve(table, "fedprox", {"profile": "none"})
    assert (bare.lr, bare.options["proximal"], bare.recalibrate) == (Config.lr, 0.01, False)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_has_only_options_that_exist(profile: str) -> None:
    assert set(PROFILES[profile].get("methods", {})) <= set(METHODS)
    for method in METHODS:
        config = configure("mini-domains", method, profile=profile)
        for name, value in profile_settings(profile, method).items():
            assert {**vars(config), **config.options}[name] == value


def test_rates_are_those_of_their_group_unless_another_gains_a_point_on_validation_images() -> None:
    tried = json.loads((RESULTS / "bench" / "rates" / "mini-domains.json").read_text())["tried"]
    others = set()
    for method in METHODS.keys() & tried.keys():
        card = METHODS[method].card
        usual = 0.01 if "factorized-fedavg" in (method, card.control) else PROFILES["tuned"]["lr"]
        found = {one["choice"]["lr"]: one["validation"] for one in tried[method] if one["choice"].keys() == {"lr"}}
        best = max(found, key=lambda rate: found[rate])
        gains = found[best] - found[usual] > 0.01
        assert profile_settings("tuned", method)["lr"] == (best if gains else usual), method
        others |= {method} if gains else set()
    assert others == {"ditto", "fedavgm", "fedfomo", "mr-mtl", "pfedme", "scaffold"}


def test_scenarios_of_the_paper_are_printed_and_everything_else_is_tuned() -> None:
    for preset in PRESETS:
        config = configure(preset, "fedavg")
        printed = preset in PAPERS
        assert (config.profile, config.recalibrate) == (("printed", False) if printed else ("tuned", True)), preset
        if printed:
            assert config.lr == 1e-3


# -- both kinds of statistics


@pytest.mark.parametrize("method", ["fedavg", "factorized-fl-beta", "fedfomo", "pfedpara"])
def test_the_last_round_has_the_scores_of_both_kinds_of_statistics(method: str, tmp_path: Path) -> None:
    runs = {}
    for recalibrate in (False, True):
        federation = tiny_federation(method, rounds=2, recalibrate=recalibrate)
        first, last = (run_round(federation, number)[0] for number in (1, 2))
        assert all("scores" not in record for record in first)
        runs[recalibrate] = last
    for plain, recalibrated in zip(runs[False], runs[True], strict=True):
        assert plain["scores"] == recalibrated["scores"]  # whichever of the two is the run's own
        assert plain["correct"] == plain["scores"]["plain"]["test"]["correct"]
        assert recalibrated["correct"] == plain["scores"]["recalibrated"]["test"]["correct"]
        assert recalibrated["loss"] == plain["scores"]["recalibrated"]["test"]["loss"] != plain["loss"]
        assert plain["scores"]["plain"]["validation"]["total"] == len(
            federation.scenario.clients[plain["client"]].validation
        )


def test_test_images_are_not_scored_where_validation_images_take_their_place() -> None:
    federation = tiny_federation("fedavg", rounds=1, score="validation")
    records, _ = run_round(federation, 1)
    assert all(set(score) == {"test"} for record in records for score in record["scores"].values())


def test_the_summary_has_the_mean_of_each(tmp_path: Path) -> None:
    config = tiny_config("fedavg", rounds=1)
    summary = run_federation(config, tmp_path / "run", scenario=tiny_scenario(config)).summary()
    assert summary is not None
    scores = [client["scores"]["recalibrated"]["validation"]["accuracy"] for client in summary["clients"]]
    assert summary["score_means"]["recalibrated"]["validation"] == pytest.approx(sum(scores) / 4)
    assert summary["score_means"]["plain"]["test"] == summary["accuracy_mean"]


# -- earlier versions


def earlier(config: Config, settle: bool) -> dict[str, Any]:
    """The configuration as a version wrote it in which recalibration was an option of methods."""
    table = tomllib.loads(config.to_toml())
    for name in ("recalibrate", "profile"):
        del table[name]
    return table | {"options": {**table["options"], "settle": settle}}


@pytest.mark.parametrize("settle", [False, True])
def test_a_run_of_an_earlier_version_is_read_and_continued(settle: bool, tmp_path: Path) -> None:
    config = tiny_config("fedavg", recalibrate=settle)
    scenario = tiny_scenario(config)
    whole = run_federation(config, tmp_path / "whole", scenario=scenario)

    class Stop(Exception):
        """Ends a run in the middle of its third round."""

    class Killing:
        def started(self, federation: object, done: int) -> None: ...
        def round_done(self, number: int, records: object) -> None: ...
        def client_done(self, number: int, client: int) -> None:
            if number == 3:
                raise Stop

    with pytest.raises(Stop):
        run_federation(config, tmp_path / "old", scenario=scenario, observers=[Killing()])
    old = tmp_path / "old" / "config.toml"
    old.write_text(tomli_w.dumps(earlier(config, settle)))
    assert read_run(tmp_path / "old").config["recalibrate"] is settle
    assert "settle" not in read_run(tmp_path / "old").options
    assert RunDirectory(tmp_path / "old").config() == config
    continued = run_federation(config, tmp_path / "old", scenario=scenario, resume=True)
    assert (tmp_path / "old" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert continued.summary() == whole.summary()
    other = tiny_config("fedavg", recalibrate=not settle)
    with pytest.raises(UserError, match=f"recalibrate was {settle}, now {not settle}"):
        run_federation(other, tmp_path / "old", scenario=scenario, resume=True)


def test_the_file_of_an_earlier_run_can_be_run(tmp_path: Path) -> None:
    config = configure("demo", "fedavg", rounds=1)
    file = tmp_path / "config.toml"
    for settle in (False, True):
        file.write_text(tomli_w.dumps(earlier(config, settle)))
        assert configure(file).recalibrate is settle
    with pytest.raises(UserError, match="'settle' of methods is now the option 'recalibrate' of a run"):
        configure("demo", "fedavg", settle=True)


def test_only_complete_configurations_of_earlier_versions_change() -> None:
    table = tomllib.loads(tiny_config("pfedpara").to_toml())
    assert upgrade(table) == table
    del table["options"]["head"]
    assert upgrade(earlier(from_table(table), False))["options"]["head"] == from_table(table).options["head"]
    old = earlier(from_table(table), False)
    del old["options"]["head"]
    assert from_table(upgrade(old)).options["head"] == "low-rank"
    assert upgrade(TABLE) == TABLE


def test_runs_of_a_preset_record_their_profile(tmp_path: Path) -> None:
    directory = run("demo", tmp_path / "run", method="stand-alone", rounds=1, clients=3)
    assert directory.config().profile == "tuned"
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] == last["scores"]["recalibrated"]["test"]["accuracy"]
