"""A damaged or unfinished run directory gives a page with what is there and a note of what is not."""

import json
import shutil
from pathlib import Path

import pytest

from factorized_fl.core.errors import UserError
from factorized_fl.report.collect import collect
from factorized_fl.report.page import render_page, write_report
from tests.report.synthetic import write_run

FILES = [
    "config.toml",
    "environment.json",
    "clients.json",
    "metrics.jsonl",
    "timing.jsonl",
    "analysis.json",
    "summary.json",
    "mixing/round-0003.safetensors",
    "traces/round-0002.safetensors",
]
STRANGE = [b"", b"\x00\xff" * 40, b"[]", b"{}", b"null", b"[1, 2]", b'{"clients": 3, "confusion": 5}', b"[[[" * 9000]


def missing(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("harm", [missing, cut])
@pytest.mark.parametrize("name", FILES)
def test_every_file_may_be_missing_or_cut_off(name: str, harm, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    harm(path / name)
    document = collect([path])
    (run,) = document["runs"]
    assert [final["correct"] for final in run["final"]] == [50, 50, 50, 50]
    assert render_page(document)
    quiet = harm is missing and ("mixing" in name or "traces" in name)  # nobody can know that there was one
    expected = "Not finished" if (name, harm) == ("summary.json", missing) else name
    assert quiet or any(expected in note for note in run["notes"]), run["notes"]


@pytest.mark.parametrize("content", STRANGE)
@pytest.mark.parametrize("name", FILES)
def test_no_content_of_any_file_breaks_the_page(name: str, content: bytes, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    (path / name).write_bytes(content)
    assert render_page(collect([path]))


@pytest.mark.parametrize("left", [["clients.json"], ["clients.json", "metrics.jsonl"], ["metrics.jsonl"]])
def test_a_list_of_fewer_clients_than_have_results(left: list[str], tmp_path: Path) -> None:
    """clients.json lists one of four, metrics.jsonl has one of four, or both."""
    path = write_run(tmp_path / "run")
    if "metrics.jsonl" in left:
        (path / "metrics.jsonl").write_text((path / "metrics.jsonl").read_text().splitlines()[0] + "\n")
        (path / "config.toml").unlink()
    if "clients.json" in left:
        (path / "clients.json").write_text('[{"name": "client 1"}]')
    else:
        (path / "clients.json").unlink()
    (run,) = collect([path])["runs"]
    known = 1 if "clients.json" in left else 4
    assert [final["client"] for final in run["final"]] == list(range(known))
    assert len(run["clients"]) == known


def test_lines_that_make_no_sense_are_counted_and_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    with (path / "metrics.jsonl").open("a") as file:
        for line in ({"round": 2, "client": 10**12}, {"round": "x", "client": 0}, {"round": 10**12, "client": 0}):
            file.write(json.dumps(line) + "\n")
        file.write('{"round": 3, NaN}\n{"round": 3, "client": 0, "accuracy": NaN, "correct": 1, "total": 0}\n{"rou')
    (run,) = collect([path])["runs"]
    assert "metrics.jsonl: 3 lines without a valid round and client left out." in run["notes"]
    assert "metrics.jsonl: 1 damaged line left out." in run["notes"]
    json.dumps(run, allow_nan=False)


def test_an_unfinished_run_says_so_first(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", complete=False)
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:8]))
    (run,) = collect([path])["runs"]
    assert run["notes"] == ["Not finished: round 2 of 3."]
    assert "so far (round 2 of 3)" in run["headline"]


def test_a_run_without_any_result_is_one_clear_error_and_no_file(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", complete=False)
    (path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="no result"):
        write_report([path])
    assert not list(path.glob("report*"))
    assert collect([path], live=True)["runs"][0]["headline"] == "No client has a result yet."


def test_never_a_half_written_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path / "run")
    page = write_report([path])
    before = page.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match="Cannot write"):
        write_report([path])
    assert page.read_bytes() == before
    assert [p.name for p in path.glob("report*")] == ["report.html"]


def test_damage_in_one_of_several_runs_leaves_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "stand-alone-seed1", "stand-alone")
    write_run(tmp_path / "a", "fedavg")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "config.toml").write_text("not = [toml")
    document = collect([tmp_path])
    assert len(document["comparison"]["variants"]) == 3
    assert "config.toml is damaged" in document["runs"][1]["notes"][0]
    assert render_page(document)
