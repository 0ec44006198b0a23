"""The documentation site builds without a warning, and its pages show what the code has."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from factorized_fl.config import Config
from factorized_fl.methods import METHODS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a broken link or reference ends the build."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install -e '.[docs]')")
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-q",
        "-f",
        str(ROOT / "mkdocs.yml"),
        "-d",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_page_of_options_has_every_option(site: Path) -> None:
    page = (site / "reference" / "options.html").read_text()
    shown = set(re.findall(r"<td><code>(\w+)</code></td>", page))
    assert {name for name in Config.__dataclass_fields__ if name not in ("preset", "options")} <= shown
    with_options = [name for name, method in METHODS.items() if dataclasses.fields(method)]
    assert all(f">{name}<" in page for name in with_options)


def test_the_page_of_python_names_has_every_public_name(site: Path) -> None:
    import factorized_fl

    page = (site / "reference" / "python.html").read_text()
    missing = [name for name in factorized_fl.__all__ if not re.search(rf'id="factorized_fl\.[\w.]+\.{name}"', page)]
    assert missing == []


@pytest.mark.parametrize("page", ["concepts/factorisation.md"])
def test_the_python_examples_of_the_concepts_run(page: str) -> None:
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL):
        exec(compile(block, page, "exec"), {"__name__": "page"})


def test_every_page_is_in_the_navigation() -> None:
    yaml = pytest.importorskip("yaml")
    text = re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text())
    nav = str(yaml.safe_load(text)["nav"])
    pages = [
        p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*") if p.suffix in (".md", ".ipynb")
    ]
    assert [page for page in pages if f"'{page}'" not in nav] == []
