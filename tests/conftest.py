import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import write_folder

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the paper's data sets, which a clone of this repository does not have."""
    if not (SHARED / "data").is_dir():
        pytest.skip("the paper's data sets are not beside this checkout (../shared/data)")
    return SHARED / "data"


@pytest.fixture(scope="session")
def paper() -> str:
    if not (SHARED / "paper.tex").is_file():
        pytest.skip("the paper's source is not beside this checkout (../shared/paper.tex)")
    return (SHARED / "paper.tex").read_text(encoding="utf-8", errors="replace")


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny federation's pictures as folders; to be read only."""
    return write_folder(tmp_path_factory.mktemp("images"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's cache; decoded images are shared within a test session."""
    monkeypatch.setenv("FFL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def quick_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this process neither wait for the disk nor ask git: a third of the time of a tiny run."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setenv("FFL_COMMIT", "0123456789ab-tests")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium here: `make chromium` installs Debian's, as root")
    if subprocess.run([sys.executable, "-m", "playwright", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("Playwright does not start here: `make chromium` installs the library that it needs, as root")
    with sync_api.sync_playwright() as playwright:
        # A name elsewhere that leads to this machine: how a foreign page would try to read ours.
        arguments = ["--no-sandbox", "--host-resolver-rules=MAP evil.example 127.0.0.1"]
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()
