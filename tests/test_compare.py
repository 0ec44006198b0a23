"""A comparison that is resumed may grow, but loses nothing."""

import json
from pathlib import Path

import pytest

from factorized_fl.core.errors import UserError
from factorized_fl.results.comparison import refuse_losing
from tests.test_cli import ffl
from tests.tiny import write_config


def test_resuming_adds_methods_and_seeds_but_drops_none(capsys, images: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "tiny.toml", rounds=1)
    file = tmp_path / "c" / "comparison.json"

    def compare(*arguments: str) -> tuple[int, str]:
        seeds = () if "--seeds" in arguments else ("--seeds", "1")
        begun = ("compare", config, "--data", images, "--out", file.parent, "--quiet")
        code, _, err = ffl(capsys, *begun, *arguments, *seeds)
        return code, err

    assert compare("--methods", "stand-alone,fedavg") == (0, "")
    before = file.read_bytes()
    advice = "which would be lost: name all that it has, or choose another --out.\n"
    code, err = compare("--methods", "fedprox,fedavg", "--resume")
    assert (code, err) == (2, f"Error: The comparison in '{file.parent}' also has the method stand-alone, {advice}")
    code, err = compare("--methods", "fedavg", "--seeds", "2", "--resume")
    assert (code, "has the method stand-alone and the seed 1, which" in err) == (2, True)
    assert file.read_bytes() == before
    assert sorted(path.name for path in file.parent.glob("*-seed*")) == ["fedavg-seed1", "stand-alone-seed1"]

    assert compare("--methods", "stand-alone,fedavg", "--resume")[0] == 0
    assert file.read_bytes() == before
    assert compare("--methods", "fedprox,fedavg,stand-alone", "--seeds", "2,1", "--resume")[0] == 0
    assert {row["method"] for row in json.loads(file.read_text())} == {"fedprox", "fedavg", "stand-alone"}
    code, err = compare("--methods", "fedprox,fedavg,stand-alone", "--resume")  # the configuration's seed, 1
    assert (code, "also has the seed 2, which" in err) == (2, True)


def test_runs_side_by_side_give_the_same_comparison(capsys, images: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "tiny.toml", rounds=1)
    begun = ("compare", config, "--data", images, "--methods", "stand-alone,fedavg", "--seeds", "1")
    assert ffl(capsys, *begun, "--out", tmp_path / "one", "--quiet")[0] == 0
    code, out, err = ffl(capsys, *begun, "--out", tmp_path / "two", "--jobs", "2")
    assert (code, err) == (0, "")
    assert sorted(line for line in out.splitlines() if line.endswith(": done")) == [
        "FedAvg, seed 1: done",
        "Stand-Alone, seed 1: done",
    ]
    one, two = (tmp_path / name / "comparison.json" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_the_demo_does_not_replace_another_comparison(capsys, tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text(json.dumps([{"method": "fedprox"}]))
    code, _, err = ffl(capsys, "demo", "--out", tmp_path, "--resume")
    assert (code, "also has the method fedprox, which" in err) == (2, True)


def test_what_was_begun_after_a_comparison_is_not_part_of_it(tmp_path: Path) -> None:
    """Of seed 2 only one of two methods is done; a folder of another name is none of theirs."""
    file = tmp_path / "comparison.json"
    file.write_text(json.dumps([{"method": "a"}, {"method": "b"}]))
    for name in ("a-seed1", "b-seed1", "a-seed2", "a-seed1-seed3", "3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").touch()
    refuse_losing(file, ["a", "b"], [1])
    with pytest.raises(UserError, match="also has the seed 1, which"):
        refuse_losing(file, ["a", "b"], [2])


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[{}]", "null", "no json"])
def test_a_damaged_comparison_can_be_made_again(tmp_path: Path, text: str) -> None:
    file = tmp_path / "comparison.json"
    refuse_losing(file, ["a"], [1])
    file.write_text(text)
    refuse_losing(file, ["a"], [1])


def test_a_method_that_cannot_serve_is_refused_before_any_training(capsys, tmp_path: Path) -> None:
    out = tmp_path / "c"
    code, _, err = ffl(capsys, "compare", "demo", "--methods", "fedavg,fedproto", "--seeds", "1", "--out", out)
    assert (code, "fedproto compares classes by their numbers, so it cannot be used: choose" in err) == (2, True)
    assert not out.exists()
