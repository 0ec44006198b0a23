"""Every code block of the README and the documentation runs; a command that cannot run here has a reason and parses."""

import re
import shlex
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image
from typer.main import get_command

from factorized_fl.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
HERE = ["README.md", "docs/run-and-read.md", "docs/own-method.md", "docs/concepts/factorisation.md"]
ELSEWHERE = {  # pages whose Python blocks run in a test of their own
    "docs/five-scripts.md": "tests/own/test_five_scripts.py",
    "docs/own-data-and-model.md": "tests/own/test_docs.py",
    "docs/methods.md": "tests/test_readme.py",
}
# Why a command does not run in this test; its options are checked all the same.
REASONS = {
    r"^pip install|^make |^\. \.venv": "installs",
    r"kits/|data/aster|sites\.toml": "needs several parties: tests/silo",
    r"--data DIR|--grid|cifar10|fetch": "needs a dataset",
    r"^torchrun|--processes": "starts processes: tests/simulate",
    r"protect=encrypt|privacy\.epsilon": "needs the extra private: tests/protect",
    r"^ffl watch": "serves until it is stopped: tests/report",
    r"--figures": "draws for seconds: tests/report",
    r"run\.toml|mynet\.py": "needs the project of `ffl new`: tests/own",
    r"^python -m studies": "writes a page of this repository: tests/studies",
    r"RUN|runs/alone": "names a run of the reader",
}
SMALL = ["clients=3", "rounds=1", "epochs=1", "images_per_client=30", "test_images=10"]


def blocks(language: str) -> list[tuple[str, str]]:
    """All blocks of a language, each with its page."""
    found = []
    for page in PAGES:
        for block in re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            found.append((page.relative_to(ROOT).as_posix(), block))
    return found


def commands() -> list[tuple[str, str]]:
    """All commands of shell blocks, each with its page, without comments."""
    found = []
    for page, block in blocks("sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                found.append((page, shlex.join(words)))
    return found


def reason(command: str) -> str:
    """Why a command does not run here; empty if it does."""
    return next((words for pattern, words in REASONS.items() if re.search(pattern, command)), "")


def test_every_block_is_of_a_language_that_is_checked() -> None:
    for page in PAGES:
        fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(fences[::2]) <= {"python", "sh", "toml", "text", "csv"}, page
        assert set(fences[1::2]) <= {""}, page


def test_every_python_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for page, block in blocks("python"):
        if page in ELSEWHERE:
            assert Path(page).name in (ROOT / ELSEWHERE[page]).read_text(encoding="utf-8")
            continue
        assert page in HERE, f"{page}: name it in this test, or in the test that runs it"
        if "@ffl.register" not in block:  # tests/example_method.py has this block, and tests/test_readme.py runs it
            exec(compile(block, page, "exec"), {"__name__": "page"})


def test_every_toml_block_can_be_read() -> None:
    found = blocks("toml")
    assert found
    for _, block in found:
        tomllib.loads(block)


@pytest.mark.parametrize("page", sorted({page for page, _ in commands()}))
def test_the_options_of_every_command_exist(page: str) -> None:
    command = get_command(app)
    for _, line in (pair for pair in commands() if pair[0] == page):
        words = line.split("-m factorized_fl", 1)[-1].split() if "-m factorized_fl" in line else shlex.split(line)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        elif words[:2] == ["python", "-m"]:
            assert (ROOT / words[2].replace(".", "/")).with_suffix("").exists(), line
        elif words[0] == "ffl" or "-m factorized_fl" in line:
            parse(command, words[1:] if words[0] == "ffl" else words)
        else:
            assert words[0] in ("pip", "."), line


def parse(command, words: list[str], parent=None) -> None:
    """Parses the words as the command line does, without running anything."""
    context = command.make_context(command.name or "ffl", list(words), parent=parent)
    if hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        _, inner, left = command.resolve_command(context, rest)
        parse(inner, left, context)


def test_commands_that_need_nothing_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (16, 16)).save("picture.png")
    (tmp_path / "nearest.py").write_text((ROOT / "tests" / "example_method.py").read_text())
    left, ran = Counter(reason(line) for _, line in commands()), []
    small = [word for setting in SMALL for word in ("--set", setting)]
    start(["run", "demo", "--method", "factorized-fl", "--out", "runs/first", *small])
    start(["compare", "demo", "--methods", "stand-alone", "--seeds", "1", "--out", "runs/demo", *small])
    for _, line in commands():
        if not reason(line):
            words = shlex.split(line)[1:]
            grows = {"run", "compare"} & set(words)
            start([*words, *(small if grows else ()), *(("--seeds", "1") if "compare" in words else ())])
            ran.append(line)
    assert len(ran) == left[""] >= 8
    assert left.total() - left[""] <= 80


def start(words: list[str]) -> None:
    """Runs a command in this process; exit code 0 is success."""
    from factorized_fl.methods import METHODS

    before = dict(METHODS)
    try:
        get_command(app).main([str(word) for word in words], standalone_mode=False)
    except SystemExit as end:
        if end.code:
            pytest.fail(f"{shlex.join(words)} ended with exit code {end.code}")
    finally:
        METHODS.clear()
        METHODS.update(before)
