"""The command line as a user sees it: exit codes, errors of one sentence, plain output in a log."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from rich.table import Table

from factorized_fl import cli
from factorized_fl.cli import common
from factorized_fl.report import progress
from tests.tiny import tiny_set, write_config, write_folder


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "tiny.toml")


def ffl(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run the command in this process; returns exit code, output, errors."""
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ffl", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def one_line(text: str) -> str:
    """The text with a space in place of each line break: where lines break depends on the length of paths."""
    return " ".join(text.split())


def test_run_prints_progress_and_result(capsys, config: Path, images: Path, tmp_path: Path) -> None:
    code, out, err = ffl(capsys, "run", config, "--method", "fedavg", "--data", images, "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    assert out.index("4 clients, labels") < out.index("numbers (") < out.index("round 1/3")
    assert "round 3/3" in out
    assert "FedAvg:" in out
    assert "\x1b" not in out  # no colour codes off a terminal
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_log_shows_the_progress_within_a_long_round(
    capsys, monkeypatch, config: Path, images: Path, tmp_path: Path
) -> None:
    """Without a pause between lines there is one for each of the four clients before that of the round."""
    monkeypatch.setattr(progress, "_LONG_ROUND", 0.0)
    _, out, _ = ffl(capsys, "run", config, "--method", "fedavg", "--data", images, "--out", tmp_path / "run")
    lines = [line.split(": ", 1)[1] for line in out.splitlines() if ": round " in line]
    assert len(lines) == 3 * (4 + 1)
    assert [line.rpartition(",")[0] for line in lines[5:9]] == [
        f"round 2/3: {k} of 4 clients trained" for k in range(1, 5)
    ]
    assert lines[9].startswith("round 2/3, accuracy ")


def test_decoding_shows_its_progress(capsys, monkeypatch, images: Path, tmp_path: Path) -> None:
    """Without a pause between lines; images in the cache are not decoded again."""
    monkeypatch.setenv("FFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(progress, "_SILENCE", -1)
    config, last = write_config(tmp_path / "one.toml", rounds=1), "looked at 140 images\n"
    begun = ["run", config, "--data", images, "--out"]
    code, out, _ = ffl(capsys, *begun, tmp_path / "run")
    assert (code, out.count(last), "looked at 1 images" in out) == (0, 1, False)
    _, out, err = ffl(capsys, *begun, tmp_path / "again")
    assert "looked at" not in out + err
    monkeypatch.setenv("FFL_CACHE", str(tmp_path / "another"))
    _, out, err = ffl(capsys, *begun, tmp_path / "quiet", "--quiet")
    assert "looked at" not in out + err
    ffl(capsys, "export", tmp_path / "run", "--client", "1", "--data", images)
    code, out, err = ffl(capsys, "predict", tmp_path / "run" / "model" / "client-1", images, "--format", "json")
    assert (code, len(json.loads(out)), err.count(last)) == (0, 140, 1)
    _, out, _ = ffl(capsys, "data", "inspect", images / "bars")
    assert "looked at 60 images" in out


def test_square_brackets_are_printed_unchanged(capsys, monkeypatch, config: Path, images: Path, tmp_path: Path) -> None:
    run = tmp_path / "run[old]"
    code, out, _ = ffl(capsys, "run", config, "--data", images, "--out", run)
    assert code == 0
    assert "run[old]" in out
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, _, err = ffl(capsys, "export", run, "--client", "1", "--data", images)
    assert code == 0
    assert err == 'Note: No ONNX file was made: pip install "factorized-fl[onnx]" for that.\n'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--set", "data=x"], "give it as --data"),
        (["run", "--set", "scrambled=100"], "scrambled = 100, but there are only 4 clients"),
        (["compare", "--methods", "fedavg", "--seeds", ""], "at least one method and one seed"),
        (["compare", "--methods", "", "--seeds", "1"], "at least one method and one seed"),
        (["compare", "--methods", "fedavg", "--set", "seed=5"], "takes several seeds: `ffl compare PRESET --seeds"),
        (["compare", "--methods", "fedavg", "--seeds", "1,2,1"], "1 is named twice"),
        (["compare", "--methods", "fedavg,fedavg"], "fedavg is named twice"),
        (["compare", "--methods", "fedavg", "--set", "method=fedprox"], "given twice"),
        (
            ["compare", "--methods", "fedavg", "--set", "dropout=0.95", "--set", "rounds=1"],
            "No client was tested with fedavg",
        ),
        (
            ["compare", "--methods", "fedavg", "--set", "preset=demo"],
            "The preset cannot be a setting: give it as the argument",
        ),
        (["pilot", "--set", "eps1=1"], "leave it out"),
        (["pilot", "--set", "observers=1"], "'observers' is not an option of a run"),
        (["pilot", "--set", "preset=demo"], "The preset cannot be a setting: give it as the argument"),
    ],
)
def test_impossible_settings_are_refused(
    arguments: list[str], words: str, capsys, config: Path, images: Path, tmp_path: Path
) -> None:
    command, *rest = arguments
    code, _, err = ffl(capsys, command, config, *rest, "--data", images, "--out", tmp_path / "out")
    assert (code, err.count("\n")) == (2, 1)
    assert words in err


def test_a_diverged_run_is_reported(capsys, config: Path, images: Path, tmp_path: Path) -> None:
    arguments = ["run", config, "--method", "fedavg", "--set", "lr=1e30", "--data", images, "--out", tmp_path / "run"]
    code, out, _ = ffl(capsys, *arguments)
    assert code == 0
    assert "Training diverged for client 1, 2" in out
    assert "Training diverged for client 1, 2" in (tmp_path / "run" / "report.html").read_text()
    begun = ["compare", config, "--methods", "stand-alone,fedavg", "--set", "lr=1e30", "--data", images]
    code, out, _ = ffl(capsys, *begun, "--out", tmp_path / "c")
    assert code == 0
    assert "FedAvg: Training diverged for client 1, 2" in out


def test_a_comparison_defaults_to_three_seeds_from_the_configurations(capsys, images: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "seven.toml", seed=7, rounds=1)
    code, out, _ = ffl(capsys, "compare", config, "--methods", "fedavg", "--data", images, "--out", tmp_path / "c")
    assert code == 0
    assert "seven.toml,3seeds" in one_line(out).replace(" ", "")  # a long path is divided wherever the line ends
    assert all((tmp_path / "c" / f"fedavg-seed{seed}" / "summary.json").exists() for seed in (7, 8, 9))


def test_export_needs_a_client_and_predict_an_image(capsys, config: Path, images: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ffl(capsys, "run", config, "--data", images, "--out", run)
    code, _, err = ffl(capsys, "export", run, "--data", images)
    assert code == 2
    assert "has a model for every client: name one of" in err
    ffl(capsys, "export", run, "--client", "1", "--data", images)
    code, _, err = ffl(capsys, "predict", run / "model" / "client-1", tmp_path / "nowhere.png")
    assert code == 2
    assert "There is no image" in err
    (tmp_path / "torn.png").write_bytes(b"no picture")
    picture = next(images.rglob("*.png"))
    code, out, err = ffl(
        capsys, "predict", run / "model" / "client-1", tmp_path / "torn.png", picture, "--format", "json"
    )
    assert code == 0
    assert "torn.png is left out, as it holds no readable image" in err
    (found,) = json.loads(out)
    assert found["image"] == str(picture)
    assert sum(found["classes"].values()) == pytest.approx(1)


def test_compare_ends_in_a_table(capsys, config: Path, images: Path, tmp_path: Path) -> None:
    arguments = ["compare", config, "--methods", "stand-alone,fedavg", "--seeds", "1,2", "--set", "rounds=2"]
    code, out, _ = ffl(capsys, *arguments, "--data", images, "--out", tmp_path / "c")
    assert code == 0
    rows = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert [row["method"] for row in rows] == ["stand-alone", "fedavg"]
    assert (len(rows[1]["effect"]["clients"]), rows[0]["up_bytes"]) == (4, 0)
    assert all(f" {100 * row['accuracy']:.2f}% " in out for row in rows)  # bold only on a terminal
    assert f"FedAvg: {rows[1]['effect']['sentence']}" in one_line(out)
    code, again, _ = ffl(capsys, *arguments, "--data", images, "--out", tmp_path / "c", "--resume", "--quiet")
    assert code == 0
    assert one_line(out).endswith(one_line(again))
    assert "tiny.toml,2seeds" in one_line(again).replace(" ", "")


def test_a_comparison_is_not_overwritten_and_needs_equal_images(
    capsys, config: Path, images: Path, tmp_path: Path
) -> None:
    begun = ["compare", config, "--set", "rounds=2", "--out", tmp_path / "c", "--methods"]
    assert ffl(capsys, *begun, "stand-alone", "--data", images)[0] == 0
    before = (tmp_path / "c" / "comparison.json").read_bytes()
    code, _, err = ffl(capsys, *begun, "fedavg", "--data", images)
    assert (code, "already holds a comparison: add --resume" in err) == (2, True)
    shutil.copytree(images, tmp_path / "images")
    Image.new("L", (8, 8), 3).save(sorted((tmp_path / "images" / "bars" / "bars-0").iterdir())[0])
    code, _, err = ffl(capsys, *begun, "stand-alone,fedavg", "--data", tmp_path / "images", "--resume")
    assert (code, "have different images, so they cannot be compared" in err) == (2, True)
    assert (tmp_path / "c" / "comparison.json").read_bytes() == before


def test_a_pilot_needs_rounds_with_an_aggregation(capsys, config: Path, images: Path, tmp_path: Path) -> None:
    pilot = ["pilot", config, "--data", images, "--out", tmp_path / "p"]
    code, _, err = ffl(capsys, *pilot, "--set", "rounds=1")
    assert (code, "at least 2 rounds" in err, (tmp_path / "p").exists()) == (2, True, False)
    code, out, _ = ffl(capsys, *pilot, "--set", "rounds=6", "--set", "dropout=0.8")
    assert code == 0
    assert 0 < out.count("mean update") < 5  # other rounds had no update to aggregate yet
    code, _, err = ffl(capsys, *pilot[:-1], tmp_path / "q", "--set", "lr=1e20")
    assert (code, "Training diverged in this pilot" in err) == (2, True)


def test_a_path_that_is_too_long_is_one_sentence(capsys) -> None:
    for command in (["report"], ["run", "demo", "--out"], ["data", "inspect"]):
        code, _, err = ffl(capsys, *command, "x" * 300)
        assert (code, err.count("\n"), "name too long" in err) == (2, 1, True), err


def test_presets_methods_and_version_are_printed(capsys) -> None:
    code, out, _ = ffl(capsys, "presets")
    assert code == 0
    assert "cifar10-permuted-non-iid" in out
    code, out, _ = ffl(capsys, "methods", "--options")
    assert code == 0
    assert "factorized-fl-beta" in out
    assert "tau = 0.5" in out
    assert "20.388" not in out
    code, out, _ = ffl(capsys, "methods", "--costs")
    assert code == 0
    assert "20.388" in out
    assert ffl(capsys, "--version")[0] == 0


def test_pilot_suggests_thresholds(capsys, config: Path, images: Path, tmp_path: Path) -> None:
    code, out, _ = ffl(capsys, "pilot", config, "--data", images, "--out", tmp_path / "pilot")
    assert code == 0
    means = [float(line.split()[4].rstrip(",")) for line in out.splitlines() if line.startswith("round ")]
    assert len(means) == 2
    proposed = float(out.split("--set eps1=")[1].split()[0])
    assert proposed == pytest.approx(max(means) / 10, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "demoo"], "Unknown preset 'demoo'. Did you mean 'demo'?"),
        (["run", "demo", "--method", "fedavgg"], "Did you mean 'fedavg'?"),
        (["run", "demo", "--set", "round=3"], "Did you mean 'rounds'?"),
        (["run", "demo", "--set", "rounds"], "write key=value"),
        (["run", "demo", "--set", "rounds=-1"], "rounds = -1 must be at least 1"),
        (["run", "demo", "--device", "tpu"], "There is no device 'tpu'"),
        (["run", "missing.toml"], "no configuration file 'missing.toml'"),
        (["run", "cifar10-iid", "--data", "nowhere"], "nowhere"),
        (["run", "demo", "--set", "clients=5000"], "too many"),
        (["compare", "demo", "--seeds", "one"], "whole numbers"),
        (["compare", "demo", "--methods", "stand-alone,nothing"], "Unknown method 'nothing'"),
        (["data", "fetch", "imagenet"], "imagenet"),
        (["dance"], "No such command 'dance'"),
    ],
)
def test_user_errors_are_one_sentence_with_exit_code_2(capsys, tmp_path, monkeypatch, arguments, words) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = ffl(capsys, *arguments)
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert list(tmp_path.rglob("*.toml")) == []  # no run was started


def test_truncated_parquet(capsys, tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "train.parquet").write_bytes(b"PAR1 and then nothing")
    code, _, err = ffl(capsys, "run", "cifar10-iid", "--data", tmp_path, "--out", tmp_path / "run")
    assert code == 2
    assert "train.parquet" in err
    assert not (tmp_path / "run").exists()


def test_folder_with_one_class(capsys, config: Path, tmp_path: Path) -> None:
    root = write_folder(tmp_path / "one", (tiny_set("bars", 1),))
    code, _, err = ffl(capsys, "run", config, "--data", root / "bars", "--out", tmp_path / "run")
    assert code == 2
    assert "class" in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_directory(capsys, config: Path, images: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    code, _, err = ffl(capsys, "run", config, "--data", images, "--out", tmp_path / "locked" / "run")
    assert code == 2
    assert "choose another folder" in err


def test_directory_that_cannot_exist(capsys, config: Path, images: Path) -> None:
    code, _, err = ffl(capsys, "run", config, "--data", images, "--out", "/proc/nowhere/run")
    assert code == 2
    assert "choose another folder" in err


def test_interrupt_explains_how_to_continue(config: Path, images: Path, tmp_path: Path) -> None:
    """A real Ctrl-C in a real process."""
    command = [sys.executable, "-u", "-m", "factorized_fl.cli", "run", str(config), "--set", "rounds=100000"]
    process = subprocess.Popen(
        [*command, "--data", str(images), "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that a shell runs in the background ignore Ctrl-C, and a child process inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    while "round 2/" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "continue with --resume" in err
    assert "Traceback" not in err


def test_names_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """File and class names may hold escape sequences."""
    table = Table("class")
    table.add_row("a\x1b[31mred\x07")
    with common.console.capture() as shown:
        common.console.print("x\x1b]0;title\x07.png: 3%\nnext", table)
    assert "\x1b" not in shown.get()
    assert "\x07" not in shown.get()
    assert "x?]0;title?.png: 3%\nnext" in shown.get()
    assert "a?[31mred?" in shown.get()
