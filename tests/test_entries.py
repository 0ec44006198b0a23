"""Comparisons of variants of one method, of ranges of seeds, with settings for one method, as JSON."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from factorized_fl import api
from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.report import progress
from factorized_fl.report.progress import ComparisonObserver, ProgressObserver
from factorized_fl.results.comparison import run_folder
from factorized_fl.results.entries import check_settings, parse_entry, split_entries
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.words import method_title
from tests.test_cli import ffl, one_line
from tests.tiny import tiny_federation, write_config


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "tiny.toml", rounds=2)


def test_an_entry_has_one_name_whatever_the_order_and_form_of_its_settings() -> None:
    name = "factorized-fl:epsilon=5:head=reset:tau=0.3"
    assert parse_entry("factorized-fl:tau=0.30: head = reset:epsilon=5").name == name
    assert parse_entry(name).name == name
    assert parse_entry("fedavg").name == "fedavg"
    assert method_title(name) == "Factorized-FL (epsilon=5, head=reset, tau=0.3)"
    assert run_folder(name, 2) == "factorized-fl-epsilon=5-head=reset-tau=0.3-seed2"
    assert split_entries("fedavg, fedavg:clients_per_domain=[1, 2],") == ["fedavg", "fedavg:clients_per_domain=[1, 2]"]


def test_settings_of_an_entry_precede_those_of_its_method_and_those_of_all() -> None:
    given = {"lr": 1.0, "momentum": 0.5, "fedavg.lr": 2.0, "fedavg.momentum": 0.6, "fedprox.lr": 9.0}
    settings = parse_entry("fedavg:lr=3.0").settings(given)
    assert settings == {"lr": 1.0, "momentum": 0.5, "fedavg.lr": 3.0, "fedavg.momentum": 0.6}
    config = api.configure("demo", "fedavg", **settings)
    assert (config.lr, config.momentum) == (3.0, 0.6)


def test_an_entry_can_align_by_the_true_classes() -> None:
    entry = parse_entry("fedavg:align=true")
    assert api.configure("demo", "fedavg", **entry.settings({})).align == "true"
    assert parse_entry(entry.name).name == "fedavg:align=true"
    with pytest.raises(UserError, match="robust"):
        api.configure("demo", "fedavg", robust=True)


def test_a_dot_after_privacy_does_not_name_a_method() -> None:
    entry = parse_entry("fedavg:privacy.epsilon=8")
    settings = entry.settings({"privacy.clip": 2.0, "lr": 0.1})
    assert settings == {"privacy_clip": 2.0, "lr": 0.1, "fedavg.privacy_epsilon": 8}
    check_settings({"privacy.clip": 2.0}, [entry])


@pytest.mark.parametrize("text", ["fedavg:lr=1:lr=2", "fedavg:seed=2", "fedavg:method=fedprox", "fedavg:lr", "fedavg:"])
def test_an_impossible_entry_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_entry(text)


def test_variants_of_one_method_and_a_range_of_seeds(capsys, config: Path, images: Path, tmp_path: Path) -> None:
    methods = "stand-alone,factorized-fl,factorized-fl:epsilon=3:tau=0.9"
    begun = ["compare", config, "--methods", methods, "--data", images, "--out", tmp_path / "c"]
    begun += ["--set", "factorized-fl.tau=0.25", "--set", "stand-alone.lr=0.07"]
    code, out, _ = ffl(capsys, *begun, "--seeds", "1-2")
    assert code == 0
    for seed in (1, 2):
        for folder, tau, epsilon in (("factorized-fl", 0.25, None), ("factorized-fl-epsilon=3-tau=0.9", 0.9, 3.0)):
            found = RunDirectory(tmp_path / "c" / f"{folder}-seed{seed}").config()
            assert (found.seed, found.options["tau"]) == (seed, tau)
            assert epsilon is None or found.options["epsilon"] == epsilon
            assert found.lr != 0.07
        assert RunDirectory(tmp_path / "c" / f"stand-alone-seed{seed}").config().lr == 0.07
    rows = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert [row["method"] for row in rows] == methods.split(",")
    assert "Factorized-FL (epsilon=3, tau=0.9)" in out
    assert "tiny.toml,2seeds" in one_line(out).replace(" ", "")
    assert "run 8/8, Factorized-FL, tau=0.9, epsilon=3.0, seed 2: round 2/2" in out
    code, _, err = ffl(capsys, *begun, "--resume", "--seeds", "1")
    assert (code, "also has the seed 2" in err) == (2, True)
    begun[3] = methods.rpartition(",")[0]
    code, _, err = ffl(capsys, *begun, "--resume", "--seeds", "1-2")
    assert (code, "also has the method factorized-fl:epsilon=3:tau=0.9" in err) == (2, True)


@pytest.mark.parametrize(
    ("methods", "settings", "words"),
    [
        ("fedavg,fedavg:lr=0.05:lr=0.1", [], "gives a setting twice"),
        ("fedavg,fedavg:batch_size=8:batch_size=9", [], "gives a setting twice"),
        ("fedavg:momentum=0.5,fedavg:momentum=0.50", [], "fedavg:momentum=0.5 is named twice"),
        ("fedavg,fedavg:momentum=0.9", ["momentum=0.9"], "are the same configuration: compare one of them"),
        ("fedavg,fedavg:seed=2", [], "sets the seed, which all methods of a comparison have in common"),
        ("fedavg,fedavg:train_share=0.5", [], "differ in train_share, so their clients are not the same"),
        ("fedavg,fedprox", ["fedavg.train_share=0.5"], "differ in train_share"),
        ("fedavg", ["factorized-fl.tau=0.3"], "is for factorized-fl, which is not compared"),
        ("fedavg", ["factorised-fl.tau=0.3"], "Unknown method 'factorised-fl'. Did you mean 'factorized-fl'?"),
        ("fedavg", ["fedavg.seed=3"], "sets the seed"),
        ("fedavg", ["fedavg.method=fedprox"], "sets the method"),
        ("fedavg:tau=0.3", [], "fedavg has no option 'tau'"),
        ("fedavg,factorized-fl", ["tau=0.3"], "write --set factorized-fl.tau=..."),
    ],
)
def test_an_impossible_comparison_is_refused_before_it_begins(
    methods: str, settings: list[str], words: str, capsys, config: Path, images: Path, tmp_path: Path
) -> None:
    given = [part for setting in settings for part in ("--set", setting)]
    begun = ["compare", config, "--methods", methods, "--data", images, "--out", tmp_path / "c"]
    code, _, err = ffl(capsys, *begun, *given)
    assert (code, err.count("\n"), words in err) == (2, 1, True), err
    assert not (tmp_path / "c").exists()


def test_a_setting_for_one_method_sets_neither_method_nor_preset(capsys, config: Path, tmp_path: Path) -> None:
    for setting in ("fedavg.method=fedprox", "fedavg.preset=demo"):
        code, _, err = ffl(capsys, "run", config, "-m", "fedavg", "--set", setting, "--out", tmp_path / "run")
        assert (code, "Unknown option" in err) == (2, True), err
    code, _, err = ffl(capsys, "pilot", config, "--set", "clustered-fl.eps1=1", "--out", tmp_path / "run")
    assert (code, "leave it out" in err) == (2, True)


# -- as JSON


def strict(text: str) -> object:
    """The JSON document of a whole output; NaN is not JSON."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(word))


def test_a_run_as_json(capsys, config: Path, images: Path, tmp_path: Path) -> None:
    begun = ["run", config, "-m", "fedavg", "--data", images, "--json", "--out"]
    code, out, err = ffl(capsys, *begun, tmp_path / "run")
    found = strict(out)
    assert isinstance(found, dict)
    assert (code, found["directory"], found["method"]) == (0, str(tmp_path / "run"), "fedavg")
    assert found["report"] == str(tmp_path / "run" / "report.html")
    assert [client["name"] for client in found["clients"]] == [f"client {k}" for k in (1, 2, 3, 4)]
    assert found["accuracy_mean"] == RunDirectory(tmp_path / "run").summary()["accuracy_mean"]
    assert found["configuration"]["rounds"] == 2
    assert "round 2/2" in err
    _, out, err = ffl(capsys, *begun, tmp_path / "quiet", "--quiet")
    assert (strict(out) is not None, "round" in err) == (True, False)
    code, out, _ = ffl(capsys, *begun, tmp_path / "diverged", "--set", "lr=1e30")
    assert (code, strict(out)["clients"][0]["loss"]) == (0, None)


def test_a_comparison_as_json(capsys, config: Path, images: Path, tmp_path: Path) -> None:
    begun = ["compare", config, "--methods", "stand-alone,fedavg:lr=0.03", "--data", images, "--json"]
    code, out, err = ffl(capsys, *begun, "--out", tmp_path / "c", "--seeds", "1")
    found = strict(out)
    assert isinstance(found, dict)
    assert (code, found["directory"], found["report"]) == (0, str(tmp_path / "c"), str(tmp_path / "c" / "report.html"))
    rows = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert [row["accuracy"] for row in found["rows"]] == [row["accuracy"] for row in rows]
    assert found["rows"][1]["title"] == "FedAvg (lr=0.03)"
    assert [verdict["client"] for verdict in found["rows"][1]["effect"]["clients"]] == [1, 2, 3, 4]
    assert "run 3/3, Stand-Alone, lr=0.03, seed 1: round 2/2" in err


def test_an_inspection_as_json(capsys, images: Path) -> None:
    code, out, _ = ffl(capsys, "data", "inspect", images / "bars", "--json")
    found = strict(out)
    assert isinstance(found, dict)
    assert (code, found["images"], sum(found["counts"]["images"].values())) == (0, 60, 60)
    assert sum(size["images"] for size in found["sizes"]) == 60
    assert "looked at" not in out


# -- the progress of a comparison


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_the_time_left_counts_all_runs_and_none_that_was_complete(monkeypatch) -> None:
    """Three runs of 2 rounds and 4 clients; the first is complete. Each client takes 5 s, so 80 s are left at first."""
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    federation = tiny_federation("fedavg", rounds=2)
    first = federation.config
    configs = [Config(**{**vars(first), "seed": seed}) for seed in (8, first.seed, 9)]
    file = io.StringIO()
    with ComparisonObserver(Console(file=file, width=200), configs) as observer:
        assert (observer.total, observer.seconds_left()) == (24, None)
        clock.now = 100.0
        observer.started(federation, 0)
        for done in (1, 2, 3, 4):
            clock.now += 5
            observer.client_done(1, done - 1)
            assert (observer.done, observer.seconds_left()) == (8 + done, 5 * (16 - done))
        clock.now += 1
        assert observer.seconds_left() == 59
        observer.round_done(1, [])
        assert (observer.done, observer.seconds_left()) == (12, pytest.approx(12 * 21 / 4))
    assert f"run 2/3, FedAvg, seed {first.seed}: round 1/2, 121 s, 0:01:03 left\n" in file.getvalue()


def test_a_resumed_run_estimates_the_time_by_its_own_rounds(monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    federation = tiny_federation("fedavg", rounds=10)
    with ProgressObserver(Console(file=io.StringIO()), "FedAvg") as observer:
        observer.started(federation, 8)
        clock.now += 3
        observer.client_done(9, 0)
        assert (observer.done, observer.seconds_left()) == (33, 3 * 7)


def test_the_bar_fits_into_80_columns_below_a_line_with_the_whole_name() -> None:
    federation = tiny_federation("without-mu", rounds=2)
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True)
    with ComparisonObserver(console, [federation.config] * 1) as observer:
        observer.started(federation, 0)
        observer.client_done(1, 0)
        observer.bar.refresh()
        text = file.getvalue()
        assert "run 1/1, Factorized-FedAvg w/o mu, seed 1: round 1/2" in text
        assert "…" not in text
        assert " left" in text


def test_a_refused_run_leaves_no_bar_on_the_terminal() -> None:
    """Rich draws the bar once more at the end; then it must be gone."""
    file = io.StringIO()
    observer = ProgressObserver(Console(file=file, width=80, force_terminal=True), "FedAvg")
    with pytest.raises(UserError), observer:
        raise UserError("This folder holds a run.")
    assert [task.visible for task in observer.bar.tasks] == [False]
    assert "FedAvg" not in file.getvalue().rpartition("\x1b[2K")[2]
