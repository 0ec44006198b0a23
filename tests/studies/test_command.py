import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from factorized_fl import presets
from studies.paper import command
from studies.paper.cells import RESULTS, ROOT, Cell
from studies.paper.grid import STUDIES, Study
from studies.paper.jobs import WORK
from studies.paper.page import write_documents
from studies.paper.table import collect
from tests.studies.fake import write
from tests.tiny import TABLE


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run the command in this process; returns exit code, output, errors."""
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["studies.paper", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        try:
            command.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cells of the ablation's own, small enough to run."""
    monkeypatch.setitem(presets.PRESETS, "tiny", TABLE)
    cells = tuple(Cell("ablation", "ablation", method, "tiny") for method in ("without-mu", "random-matching"))
    monkeypatch.setitem(STUDIES, "ablation", Study("ablation", "tiny", cells))


@pytest.mark.usefixtures("tiny")
def test_run_then_show_then_nothing_left_to_run(capsys, images: Path, tmp_path: Path) -> None:
    folders = ["--results", tmp_path / "r", "--work", tmp_path / "w"]
    code, out, err = run_command(capsys, "ablation", "--data", images, "--device", "cpu", *folders)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("ablation/without-mu-seed1: done, ")
    assert lines[1].startswith("ablation/random-matching-seed1: done, ")
    code, again, _ = run_command(capsys, "ablation", "--data", images, *folders)
    assert code == 0
    assert again.count("was done") == 2
    code, shown, _ = run_command(capsys, "--show", "ablation", "--format", "json", *folders)
    rows = json.loads(shown)
    assert [row["method"] for row in rows] == ["without-mu", "random-matching"]
    assert f"{rows[0]['ours']:.2f}%" in lines[0]
    assert rows[1]["bytes"] > 0
    code, listed, _ = run_command(capsys, "--list", *folders)
    assert code == 0
    assert "label-svhn" in listed


@pytest.mark.usefixtures("tiny")
def test_a_log_hears_of_a_cell_that_takes_long_before_its_end(
    capsys, monkeypatch, images: Path, tmp_path: Path
) -> None:
    """Where half a minute is nothing, every one of the three rounds has its line."""
    monkeypatch.setattr("studies.paper.command.SECONDS_BETWEEN_LINES", 0.0)
    folders = ["--results", tmp_path / "r", "--work", tmp_path / "w"]
    chosen = ["--methods", "without-mu", "--device", "cpu"]
    _, out, _ = run_command(capsys, "ablation", "--data", images, *chosen, *folders)
    *rounds, done = out.splitlines()
    assert [line.split(", accuracy")[0] for line in rounds] == [
        f"Factorized-FedAvg w/o mu, seed 1: round {k}/3" for k in (1, 2, 3)
    ]
    assert done.startswith("ablation/without-mu-seed1: done, ")


@pytest.mark.usefixtures("tiny")
def test_no_minutes_runs_nothing_and_says_what_is_left(capsys, images: Path, tmp_path: Path) -> None:
    folders = ["--results", tmp_path / "r", "--work", tmp_path / "w"]
    code, out, err = run_command(capsys, "ablation", "--data", images, "--minutes", "0", *folders)
    assert code == 0
    assert out.count("no time left") == 2
    assert "the same command continues" in err
    assert not (tmp_path / "r").exists()


@pytest.mark.usefixtures("tiny")
def test_a_list_of_a_study_says_what_is_left_in_order(capsys, tmp_path: Path) -> None:
    write(tmp_path, "domains", "fedavg", [60.0] * 20)
    code, out, _ = run_command(capsys, "ablation", "heterogeneity", "--list", "--results", tmp_path)
    left = ["ablation/without-mu-seed1", "ablation/random-matching-seed1", "heterogeneity/seed1"]
    assert (code, out.split("Left, in this order:")[1].split()) == (0, left)
    write(tmp_path, "ablation", "random-matching", [60.0] * 20)
    for method, said in (("without-mu", left[0]), ("random-matching", "Nothing is left.")):
        _, out, _ = run_command(capsys, "ablation", "--list", "--methods", method, "--results", tmp_path)
        assert out.splitlines()[-1].strip() == said


@pytest.mark.usefixtures("tiny")
def test_interrupt_ends_with_130_and_what_to_do(capsys, images: Path, tmp_path: Path, monkeypatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("studies.runner.run_federation", interrupted)
    folders = ["--results", tmp_path / "r", "--work", tmp_path / "w"]
    code, _, err = run_command(capsys, "ablation", "--data", images, *folders)
    assert code == 130
    assert "the same command continues" in err


def test_show_prints_numbers_differences_and_claims(capsys, tmp_path: Path) -> None:
    write(tmp_path, "domains", "fedavg", [60.0] * 20)
    code, out, err = run_command(capsys, "--show", "--results", tmp_path)
    assert (code, err) == (0, "")
    assert "56.42 ± 1.65" in out
    assert "+3.58" in out
    assert "Permuted labels hurt methods that average." in out
    code, out, _ = run_command(capsys, "--show", "domains", "--results", tmp_path)
    assert code == 0
    assert "wrote" not in out


def test_the_pages_the_figures_and_the_readmes_lines_are_written_together(tmp_path: Path) -> None:
    write(tmp_path / "r", "domains", "fedavg", [60.0] * 20)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "<!-- reproduction: written by `python -m studies.paper --show` -->\n<!-- end of reproduction -->\n"
    )
    written = write_documents(collect(tmp_path / "r"), tmp_path / "docs")
    assert "| FedAvg | 56.42 / 60.00 **x** |" in (tmp_path / "docs" / "reproduction.md").read_text()
    assert "56.42 / 60.00 (+3.58)" in (tmp_path / "docs" / "paper" / "tables.md").read_text()
    assert (tmp_path / "docs" / "figures" / "domains.svg") in written
    assert "We ran 1 of its 98 published means" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name a study, for example"),
        (["nonsense"], "Unknown study 'nonsense'"),
        (["domains", "--seeds", "one"], "--seeds 'one' must be whole numbers"),
        (["domains", "--methods", "fedprox,fed"], "Unknown method 'fed'"),
        (["domains", "--settings", "elsewhere"], "Unknown setting 'elsewhere'"),
        (["--show", "nonsense"], "Unknown study 'nonsense'"),
        (["--show", "--format", "xml"], "--format 'xml' must be table or json"),
        (["domains", "--data", "nowhere", "--results", "r", "--work", "w"], "There is no nowhere"),
        (["heterogeneity", "--data", "nowhere", "--results", "r"], "There is no nowhere"),
        (["draws", "--data", "nowhere", "--results", "r"], "There is no nowhere"),
    ],
)
def test_mistakes_end_in_one_sentence(
    arguments: list[str], message: str, capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run_command(capsys, *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("content", ["{", "[]", "{}", "3"])
def test_a_damaged_result_is_named(content: str, capsys, tmp_path: Path) -> None:
    (tmp_path / "domains").mkdir()
    (tmp_path / "domains" / "fedavg-seed1.json").write_text(content)
    code, _, err = run_command(capsys, "--show", "domains", "--results", tmp_path)
    assert code == 2
    assert "fedavg-seed1.json' cannot be read" in err
    (tmp_path / "domains" / "fedavg-seed1.json").unlink()
    (tmp_path / "heterogeneity").mkdir()
    (tmp_path / "heterogeneity" / "seed1.json").write_text(content)
    code, _, err = run_command(capsys, "--show", "domains", "--results", tmp_path)
    assert code == 2
    assert "seed1.json' cannot be read" in err


def test_nothing_is_written_into_another_project(tmp_path: Path) -> None:
    """From a folder with docs and results of its own, the command shows and lists its own source tree's."""
    files = {tmp_path / "docs" / "reproduction.md": "theirs", tmp_path / "README.md": "theirs"}
    for path in (tmp_path / "docs", tmp_path / "results" / "paper"):
        path.mkdir(parents=True)
    for path, text in files.items():
        path.write_text(text)
    own = {path: path.read_bytes() for path in (ROOT / "docs" / "reproduction.md", ROOT / "README.md")}
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-m", "studies.paper"]
    shown = subprocess.run([*run, "--show"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert f"wrote {ROOT / 'docs' / 'reproduction.md'}" in shown.stdout
    assert {path: path.read_text() for path in files} == files
    assert sorted(tmp_path.rglob("*.*")) == sorted(files)
    assert {path: path.read_bytes() for path in own} == own  # they were up to date


def test_results_of_another_folder_do_not_change_the_page(capsys, tmp_path: Path) -> None:
    write(tmp_path / "r", "domains", "fedavg", [60.0] * 20)
    before = (ROOT / "docs" / "reproduction.md").read_bytes()
    code, out, _ = run_command(capsys, "--show", "--results", tmp_path / "r")
    assert (code, "wrote" in out) == (0, False)
    assert (ROOT / "docs" / "reproduction.md").read_bytes() == before


def test_the_defaults_are_those_of_the_source_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Path(command.__file__).parents[2] / "results" / "paper" == RESULTS
    assert WORK.is_relative_to(ROOT)


def test_what_is_shown_is_not_chosen_and_has_to_be_there(capsys, tmp_path: Path) -> None:
    code, _, err = run_command(capsys, "domains", "--show", "--methods", "fedavg")
    assert (code, "choose what to run" in err) == (2, True)
    code, _, err = run_command(capsys, "--list", "--results", tmp_path / "nowhere")
    assert (code, "There is no folder" in err) == (2, True)
    code, out, _ = run_command(capsys, "domains", "--list", "--results", tmp_path)
    assert code == 0
    assert "Table 1, bottom" in out
    assert "Table 1, top" not in out
