"""A tab of a real browser: Debian's Chromium without a window."""

from pathlib import Path
from typing import Any


class Watched:
    """A tab that remembers every complaint and every request."""

    def __init__(self, browser: Any, offline: bool = True, width: int = 1280, scheme: str = "light") -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=offline, accept_downloads=True
        )
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def download(self, selector: str) -> tuple[str, bytes]:
        with self.page.expect_download() as waiting:
            self.page.locator(selector).first.click()
        return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()
