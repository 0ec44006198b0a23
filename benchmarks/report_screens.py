"""The README's pictures of the report page, from a finished `ffl demo`; see `python -m benchmarks.refresh_demo`."""

import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from factorized_fl.report.page import write_report


def photograph(root: Path) -> None:
    """Writes docs/report-desktop.png and docs/report-phone.png."""
    page = write_report([root])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        desktop = browser.new_page(viewport={"width": 1180, "height": 1240}, color_scheme="light")
        desktop.goto(page.resolve().as_uri())
        save(desktop.screenshot(), "docs/report-desktop.png")
        phone = browser.new_page(viewport={"width": 390, "height": 1160}, color_scheme="dark")
        phone.goto(page.resolve().as_uri())
        phone.locator("#matrix").evaluate("node => node.closest('section').scrollIntoView()")
        save(phone.screenshot(), "docs/report-phone.png")
        browser.close()


def save(content: bytes, path: str) -> None:
    """Saves a picture with 256 colours, which are enough for the page and need a third of the bytes."""
    Image.open(io.BytesIO(content)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
