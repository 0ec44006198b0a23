import json
from pathlib import Path

import pytest
from factorized_fl.reproduce.cells import Cell
from factorized_fl.reproduce.studies import STUDIES, Study

from factorized_fl import presets
from tests.reproduce.fake import write
from tests.test_cli import ffl
from tests.tiny import TABLE


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cells of the ablation's own, small enough to run."""
    monkeypatch.setitem(presets.PRESETS, "tiny", TABLE)
    cells = tuple(Cell("ablation", "ablation", method, "tiny") for method in ("without-mu", "random-matching"))
    monkeypatch.setitem(STUDIES, "ablation", Study("ablation", "tiny", cells))


@pytest.mark.usefixtures("tiny")
def test_run_then_show_then_nothing_left_to_run(capsys, images: Path, tmp_path: Path) -> None:
    folders = ["--results", tmp_path / "r", "--work", tmp_path / "w"]
    code, out, err = ffl(capsys, "reproduce", "ablation", "--data", images, "--device", "cpu", *folders)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("ablation/without-mu-seed1: done, ")
    assert lines[1].startswith("ablation/random-matching-seed1: done, ")
    code, again, _ = ffl(capsys, "reproduce", "ablation", "--data", images, *folders)
    assert code == 0
    assert again.count("was done") == 2
    code, shown, _ = ffl(capsys, "reproduce", "--show", "ablation", "--format", "json", *folders)
    rows = json.loads(shown)
    assert [row["method"] for row in rows] == ["without-mu", "random-matching"]
    assert f"{rows[0]['ours']:.2f}%" in lines[0]
    assert rows[1]["bytes"] > 0
    code, listed, _ = ffl(capsys, "reproduce", "--list", *folders)
    assert code == 0
    assert "label-svhn" in listed


@pytest.mark.usefixtures("tiny")
def test_a_log_hears_of_a_cell_that_takes_long_before_its_end(
    capsys, monkeypatch, images: Path, tmp_path: Path
) -> None:
    """Where half a minute is nothing, every one of the three rounds has its line."""
    monkeypatch.setattr("factorized_fl.cli.reproduce._SELDOM", 0.0)
    folders = ["--results", tmp_path / "r", "--work", tmp_path / "w"]
    chosen = ["--methods", "without-mu", "--device", "cpu"]
    _, out, _ = ffl(capsys, "reproduce", "ablation", "--data", images, *chosen, *folders)
    *rounds, done = out.splitlines()
    assert [line.split(", accuracy")[0] for line in rounds] == [
        f"Factorized-FedAvg w/o mu, seed 1: round {k}/3" for k in (1, 2, 3)
    ]
    assert done.startswith("ablation/without-mu-seed1: done, ")


@pytest.mark.usefixtures("tiny")
def test_no_minutes_runs_nothing_and_says_what_is_left(capsys, images: Path, tmp_path: Path) -> None:
    folders = ["--results", tmp_path / "r", "--work", tmp_path / "w"]
    code, out, err = ffl(capsys, "reproduce", "ablation", "--data", images, "--minutes", "0", *folders)
    assert code == 0
    assert out.count("no time left") == 2
    assert "the same command goes on" in err
    assert not (tmp_path / "r").exists()


@pytest.mark.usefixtures("tiny")
def test_a_list_of_a_study_says_what_is_left_in_order(capsys, tmp_path: Path) -> None:
    write(tmp_path, "domains", "fedavg", [60.0] * 20)
    code, out, _ = ffl(capsys, "reproduce", "ablation", "heterogeneity", "--list", "--results", tmp_path)
    left = ["ablation/without-mu-seed1", "ablation/random-matching-seed1", "heterogeneity/seed1"]
    assert (code, out.split("Left, in this order:")[1].split()) == (0, left)
    write(tmp_path, "ablation", "random-matching", [60.0] * 20)
    for method, said in (("without-mu", left[0]), ("random-matching", "Nothing is left.")):
        _, out, _ = ffl(capsys, "reproduce", "ablation", "--list", "--methods", method, "--results", tmp_path)
        assert out.splitlines()[-1].strip() == said


@pytest.mark.usefixtures("tiny")
def test_interrupt_ends_with_130_and_what_to_do(capsys, images: Path, tmp_path: Path, monkeypatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("factorized_fl.reproduce.runner.run", interrupted)
    folders = ["--results", tmp_path / "r", "--work", tmp_path / "w"]
    code, _, err = ffl(capsys, "reproduce", "ablation", "--data", images, *folders)
    assert code == 130
    assert "the same command goes on" in err


def test_show_writes_the_page_the_figures_and_the_readmes_table(capsys, tmp_path: Path) -> None:
    write(tmp_path / "r", "domains", "fedavg", [60.0] * 20)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "<!-- reproduction: written by `ffl reproduce --show` -->\n<!-- end of reproduction -->\n"
    )
    code, out, err = ffl(capsys, "reproduce", "--show", "--results", tmp_path / "r", "--docs", tmp_path / "docs")
    assert (code, err) == (0, "")
    assert "56.42 ± 1.65" in out
    assert "+3.58" in out
    assert "Permuted labels hurt methods that average." in out
    assert "56.42 / 60.00 (+3.58)" in (tmp_path / "docs" / "reproduction.md").read_text()
    assert (tmp_path / "docs" / "figures" / "domains.svg").exists()
    assert "56.42 / 60.00 (+3.58)" in (tmp_path / "README.md").read_text()
    code, out, _ = ffl(capsys, "reproduce", "--show", "domains", "--results", tmp_path / "r", "--docs", tmp_path / "x")
    assert code == 0
    assert "wrote" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Say what to reproduce"),
        (["nonsense"], "Unknown study 'nonsense'"),
        (["domains", "--seeds", "one"], "--seeds 'one' must be whole numbers"),
        (["domains", "--methods", "fedprox,fed"], "Unknown method 'fed'"),
        (["domains", "--settings", "elsewhere"], "Unknown setting 'elsewhere'"),
        (["--show", "nonsense"], "Unknown study 'nonsense'"),
        (["--show", "--format", "xml"], "--format 'xml' must be table or json"),
        (["--show", "--docs", "nowhere"], "There is no folder 'nowhere'"),
        (["domains", "--data", "nowhere"], "There is no nowhere"),
        (["heterogeneity", "--data", "nowhere"], "There is no nowhere"),
        (["draws", "--data", "nowhere"], "There is no nowhere"),
    ],
)
def test_mistakes_end_in_one_sentence(
    arguments: list[str], message: str, capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = ffl(capsys, "reproduce", *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("content", ["{", "[]", "{}", "3"])
def test_a_damaged_result_is_named(content: str, capsys, tmp_path: Path) -> None:
    (tmp_path / "domains").mkdir()
    (tmp_path / "domains" / "fedavg-seed1.json").write_text(content)
    code, _, err = ffl(capsys, "reproduce", "--show", "domains", "--results", tmp_path)
    assert code == 2
    assert "fedavg-seed1.json' cannot be read" in err
    (tmp_path / "domains" / "fedavg-seed1.json").unlink()
    (tmp_path / "heterogeneity").mkdir()
    (tmp_path / "heterogeneity" / "seed1.json").write_text(content)
    code, _, err = ffl(capsys, "reproduce", "--show", "domains", "--results", tmp_path)
    assert code == 2
    assert "seed1.json' cannot be read" in err
