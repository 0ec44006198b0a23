"""Size of the report page and time to open it in a browser: 20 clients x 100 rounds, 200 x 200.

    PYTHONPATH=. python benchmarks/report_page.py

The time is measured by the browser, from the start of the navigation until the charts are drawn; median of five.
Writes results/performance/report-page.json.
"""

import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from factorized_fl.report.page import write_report
from tests.report.synthetic import write_run

# The script of the page draws all charts before the load event.
LOADED = "() => performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"


def measure(browser, page: Path) -> list[float]:
    seconds = []
    for _ in range(5):
        tab = browser.new_page()
        tab.goto(page.as_uri())
        assert tab.locator("figure svg").count() > 6
        seconds.append(tab.evaluate(LOADED))
        tab.close()
    return seconds


def main() -> None:
    rows = []
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for clients, rounds in ((20, 100), (200, 200)):
            root = Path(folder) / str(clients)
            more = {"domains": [f"domain {d}" for d in range(5)], "classes": [f"class {c}" for c in range(10)]}
            more |= {"clients": clients, "rounds": rounds, "correct": [30 + k * 7 % 60 for k in range(clients)]}
            write_run(root / "stand-alone-seed1", "stand-alone", **more)
            run = write_run(root / "factorized-fl-seed1", **more)
            began = time.perf_counter()
            page = write_report([run])
            written = time.perf_counter() - began
            seconds = measure(browser, page)
            rows.append(
                {
                    "clients": clients,
                    "rounds": rounds,
                    "megabytes": round(page.stat().st_size / 1e6, 2),
                    "write_s": round(written, 2),
                    "open_s": round(statistics.median(seconds), 2),
                    "open_s_slowest": round(max(seconds), 2),
                }
            )
            print(rows[-1])
        version = browser.version
        browser.close()
    content = {"browser": f"Chromium {version}", "pages": rows}
    Path("results/performance/report-page.json").write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
