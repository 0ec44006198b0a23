"""One reader: strict for the program, lenient for the page."""

import json
from pathlib import Path

import pytest

from factorized_fl.core.errors import UserError
from factorized_fl.results.reading import RunReader, read_run
from tests.report.synthetic import write_run

FILES = [
    "config.toml",
    "environment.json",
    "clients.json",
    "metrics.jsonl",
    "timing.jsonl",
    "analysis.json",
    "summary.json",
]


def test_both_readers_agree_on_a_whole_run(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", correct=[80, 60, 50, 20])
    strict, lenient = read_run(path, strict=True), read_run(path)
    assert strict == lenient
    assert strict.notes == []
    assert [result["correct"] for result in strict.final] == [80, 60, 50, 20]
    assert (strict.method, strict.seed, strict.planned, strict.done, strict.complete) == (
        "factorized-fl",
        1,
        3,
        3,
        True,
    )


@pytest.mark.parametrize("name", FILES)
def test_damage_stops_the_strict_reader_and_is_a_note_of_the_lenient_one(name: str, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    content = (path / name).read_bytes()
    (path / name).write_bytes(b"\xff{\n" + content)
    with pytest.raises(UserError, match=name):
        read_run(path, strict=True)
    run = read_run(path)
    assert any(name in note for note in run.notes)
    assert [result["correct"] for result in run.final] == [50, 50, 50, 50]


def test_lines_of_no_round_or_client_stop_the_strict_reader(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 1, "client": 99}) + "\n")
    with pytest.raises(UserError, match="has 1 line without a valid round and client"):
        read_run(path, strict=True)
    assert read_run(path).notes == ["metrics.jsonl: 1 line without a valid round and client left out."]


def test_an_incomplete_last_line_is_what_a_killed_process_leaves(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    whole = RunReader(path).metrics()
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "client": 0, "accura')
    assert RunReader(path).metrics() == whole == RunReader(path, strict=False).metrics()


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path / "run")

    def refused(file: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(Path, "read_bytes", refused)  # whoever runs tests may be allowed everything
    with pytest.raises(UserError, match=r"summary.json' cannot be read \(Permission denied\).* no data was lost"):
        RunReader(path).summary()
    assert read_run(path).notes[-1] == "environment.json cannot be read (Permission denied)."
