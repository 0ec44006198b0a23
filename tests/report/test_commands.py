"""The commands that show, and what the commands that train leave to look at."""

from pathlib import Path

import pytest

from factorized_fl.methods import METHODS
from tests.report.synthetic import write_run
from tests.test_cli import ffl
from tests.tiny import write_config


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "tiny.toml", rounds=2)


def test_a_run_ends_with_its_page(capsys, config: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, said, err = ffl(capsys, "run", config, "--data", images, "--out", out, "--watch", "--tensorboard")
    assert (code, err) == (0, "")
    assert "Watch it at http://127.0.0.1:" in said
    assert f"Report: {out / 'report.html'}" in said
    assert "copy-command" in (out / "report.html").read_text()
    assert list((out / "tensorboard").glob("events*"))
    code, said, _ = ffl(capsys, "run", config, "--data", images, "--out", out, "--resume", "--quiet")
    assert code == 0


def test_a_comparison_ends_with_one_page_for_all(capsys, config: Path, images: Path, tmp_path: Path) -> None:
    arguments = ["compare", config, "--methods", "stand-alone,fedavg", "--data", images, "--out", tmp_path / "c"]
    code, said, _ = ffl(capsys, *arguments, "--watch")
    assert code == 0
    assert f"Report: {tmp_path / 'c' / 'report.html'}" in said
    assert "6 runs compared" in (tmp_path / "c" / "report.html").read_text()


def test_a_page_that_cannot_be_written_does_not_fail_the_run(
    capsys, config: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no page today")

    monkeypatch.setattr("factorized_fl.api.report", broken)
    code, said, err = ffl(capsys, "run", config, "--data", images, "--out", tmp_path / "run", "--quiet")
    assert code == 0
    assert "Factorized-FL:" in said
    assert err == "Note: the report could not be written (no page today).\n"


def test_the_page_of_ones_own_method_stays_true_without_the_method(
    capsys, config: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "smooth.py"
    file.write_text(
        "import factorized_fl as ffl\nfrom factorized_fl.methods.fedavg import FedAvg\n"
        "@ffl.register\nclass Smooth(FedAvg):\n    name, title, row = 'smooth', 'Smooth', ('a', 'b', 'c', 'd')\n"
    )
    monkeypatch.setitem(METHODS, "smooth", METHODS["fedavg"])  # what the file registers is gone after the test
    del METHODS["smooth"]
    monkeypatch.chdir(tmp_path)
    run = ["run", config, "--method", "smooth", "--data", images, "--out", "runs/s", "--quiet"]
    assert ffl(capsys, "--load", file, *run)[0] == 0
    again = "ffl --load FILE.py run runs/s/config.toml --data FOLDER"
    page = tmp_path / "runs" / "s" / "report.html"
    assert again in page.read_text()
    del METHODS["smooth"]
    assert ffl(capsys, "report", "runs/s")[0] == 0
    assert again in page.read_text()


def test_report_and_figures(capsys, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", matrices=False)
    base = write_run(tmp_path / "alone", "stand-alone")
    code, said, _ = ffl(capsys, "report", run, "--baseline", base, "--figures", tmp_path / "f", "--out", tmp_path / "p")
    assert code == 0
    assert f"Report: {tmp_path / 'p'}" in said
    assert f"Figure: {tmp_path / 'f' / 'run-accuracy.svg'}" in said
    assert "same test images" in (tmp_path / "p").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report", "nowhere"], "'nowhere' does not exist"),
        (["report", "."], "is not a run directory and holds none"),
        (["report", "run", "--baseline", "nowhere"], "'nowhere' does not exist"),
        (["report", "run", "--out", "/proc/nowhere/page.html"], "Cannot write"),
        (["watch", "nowhere"], "'nowhere' does not exist"),
    ],
)
def test_mistakes_are_one_sentence(capsys, tmp_path: Path, monkeypatch, arguments: list[str], words: str) -> None:
    monkeypatch.chdir(tmp_path)
    if "run" in arguments:
        write_run(tmp_path / "run")
    code, _, err = ffl(capsys, *arguments)
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("*.html"))
