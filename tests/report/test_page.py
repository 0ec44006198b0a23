import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from factorized_fl.report.collect import collect
from factorized_fl.report.page import render_page, write_report
from factorized_fl.report.single_file import embed
from tests.report.synthetic import write_run

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{script}}&amp;\u2028"


class Elements(HTMLParser):
    """The page as a browser sees it: elements, and what is in scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self.policy = ""
        self.feed(page)

    def handle_starttag(self, tag, attributes) -> None:
        self.tags.append(tag)
        if tag in self.inside:
            self.inside[tag].append("")
        if ("http-equiv", "Content-Security-Policy") in attributes:
            self.policy = dict(attributes)["content"]

    def handle_endtag(self, tag) -> None:
        self.tags.append(f"/{tag}")

    def handle_data(self, data) -> None:
        if self.tags and self.tags[-1] in self.inside:
            self.inside[self.tags[-1]][-1] += data


@pytest.fixture
def evil_run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", classes=(EVIL, "two"), domains=(EVIL, "lines"))


def test_names_with_html_in_them_stay_data(evil_run: Path) -> None:
    document = collect([evil_run])
    found = Elements(render_page(document))
    assert found.tags.count("script") == 2
    assert "img" not in found.tags
    assert json.loads(found.inside["script"][0]) == json.loads(json.dumps(document))
    assert json.loads(found.inside["script"][0])["runs"][0]["clients"][0]["classes"][0] == EVIL


def test_the_policy_allows_this_script_and_this_style_only(evil_run: Path) -> None:
    found = Elements(render_page(collect([evil_run])))
    for kind, content in (("script", found.inside["script"][1]), ("style", found.inside["style"][0])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in found.policy
    assert "default-src 'none'" in found.policy
    assert "connect-src 'none'" in found.policy
    assert "unsafe" not in found.policy


def test_nothing_is_fetched_from_anywhere(evil_run: Path) -> None:
    page = render_page(collect([evil_run]))
    addresses = set(re.findall(r"https?://[^\s\"'`<)]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # the name of a language, not a place
    assert not re.search(
        r"<(link|iframe|object|embed)\b|@import|src=", page.split('<script type="application/json"')[0]
    )


def test_the_script_puts_no_markup_in() -> None:
    page = render_page({"title": "", "live": False, "comparison": None, "runs": []})
    for door in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert door not in page


def test_numbers_that_json_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        embed({"x": float("nan")})


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    page = write_report([path])
    assert page == path / "report.html"
    first = page.read_bytes()
    assert write_report([path]).read_bytes() == first


def test_twenty_clients_and_a_hundred_rounds_stay_far_below_six_megabytes(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", clients=20, rounds=100, domains=[f"d{i}" for i in range(5)])
    assert len(render_page(collect([path]))) < 1_000_000


def test_where_the_page_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = write_run(tmp_path / "runs" / "a"), write_run(tmp_path / "runs" / "b", "fedavg")
    monkeypatch.chdir(tmp_path)
    assert write_report([tmp_path / "runs"]) == tmp_path / "runs" / "report.html"
    assert write_report([one, two]) == Path("report.html")
    assert write_report([one], tmp_path / "new" / "page.html") == tmp_path / "new" / "page.html"
    assert write_report([one], tmp_path / "new") == tmp_path / "new" / "report.html"
