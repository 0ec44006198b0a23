"""The page in a real browser: Debian's Chromium without a window and without a network."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from importlib import resources
from pathlib import Path

import pytest

from factorized_fl.report.page import write_report
from tests.browser import Watched
from tests.report.synthetic import add_round, write_run

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    domains = ("bars", EVIL)
    classes = ("cat", EVIL, "dog")
    write_run(root / "stand-alone-seed1", "stand-alone", domains=domains, classes=classes, correct=[50, 50, 50, 50])
    write_run(root / "fedavg-seed1", "fedavg", domains=domains, classes=classes, correct=[20, 55, 50, 45])
    write_run(root / "ours", domains=domains, classes=classes, correct=[80, 40, 52, 20], rounds=4)
    return root


@pytest.fixture(scope="module")
def one(runs: Path) -> str:
    return write_report([runs / "ours"]).as_uri()


@pytest.fixture(scope="module")
def several(runs: Path) -> str:
    return write_report([runs]).as_uri()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opens_from_a_file_without_network_or_complaint(chromium, one, several, width, scheme) -> None:
    for address in (one, several):
        with Watched(chromium, width=width, scheme=scheme) as tab:
            tab.page.goto(address)
            tab.page.wait_for_selector("figure svg")
            assert tab.complaints == []
            assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == []
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= width  # nothing sticks out
            for figure in tab.page.locator("figure .plot").all():
                assert figure.locator("svg").bounding_box()["height"] > 40


def test_the_verdict_is_first_and_its_table_sorts(chromium, one) -> None:
    with Watched(chromium) as tab:
        tab.page.goto(one)
        assert tab.page.locator("h1").inner_text().startswith("48.0% accuracy on average, -2.0 points (95% ")
        column = "#verdicts tbody tr td:nth-child(3)"
        heading = tab.page.locator("#verdicts th:nth-child(3)")
        heading.locator("button").focus()
        tab.page.keyboard.press("Enter")
        down = [text.split()[0] for text in tab.page.locator(column).all_inner_texts()]
        assert down == ["+30.0", "+2.0", "−10.0", "−30.0"]
        assert heading.get_attribute("aria-sort") == "descending"
        tab.page.keyboard.press("Enter")  # the heading keeps the focus
        assert [text.split()[0] for text in tab.page.locator(column).all_inner_texts()] == down[::-1]
        assert heading.get_attribute("aria-sort") == "ascending"


def test_the_slider_changes_the_heat_map_and_the_graph(chromium, one) -> None:
    with Watched(chromium) as tab:
        tab.page.goto(one)
        fills = "els => els.map(e => e.style.fill).join()"
        heat = "[data-figure$=mixing-weights] svg rect"
        last, words = tab.page.eval_on_selector_all(heat, fills), tab.page.locator("#round-shown")
        graph = tab.page.locator("[data-figure$=graph] svg").inner_html()
        assert words.inner_text() == "round 4"
        tab.page.locator("#round").focus()
        tab.page.keyboard.press("ArrowLeft")
        assert words.inner_text() == "round 3"
        assert tab.page.eval_on_selector_all(heat, fills) != last
        assert tab.page.locator("[data-figure$=graph] svg").inner_html() != graph
        tab.page.keyboard.press("ArrowRight")
        assert tab.page.eval_on_selector_all(heat, fills) == last
        tab.page.locator("#matrix").select_option("matched")
        assert tab.page.locator("#round").is_disabled()
        assert tab.complaints == []


@pytest.mark.parametrize("width", [280, 330, 560, 900])
def test_long_names_stand_beside_their_nodes_and_nothing_is_clipped(chromium, one, width: int) -> None:
    assets = resources.files("factorized_fl.report") / "assets"
    scripts = "\n".join(assets.joinpath(name).read_text() for name in ("tools.js", "charts.js", "maps.js"))
    drawn = (
        f"([width, names]) => {{ {scripts}"
        """
        const nodes = names.map((label) => ({ label, color: "#369", tell: label }));
        const svg = network(width, { label: "graph", nodes, edges: [], chosen: null, choose: () => {} });
        document.body.replaceChildren(svg);
        const box = (e) => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
        const all = (kind) => [...svg.querySelectorAll(kind)];
        return { frame: box(svg), words: all("text").map((e) => e.textContent),
            boxes: all("text").map(box), dots: all("circle").map(box) };
    }"""
    )

    def apart(a: list[float], b: list[float]) -> bool:
        return a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]

    with Watched(chromium) as tab:
        for count in (1, 2, 3, 7, 12):
            names = [f"{k}-{'hospital-of-the-north-' * 2}"[:40] for k in range(count)]
            tab.page.goto(one)
            found = tab.page.evaluate(drawn, [width, names])
            left, top, right, bottom = found["frame"]
            assert len(found["boxes"]) == count
            for k, box in enumerate(found["boxes"]):
                assert left <= box[0] <= box[2] <= right
                assert top <= box[1] <= box[3] <= bottom
                assert found["words"][k].startswith(f"{k}-hospi")
                assert all(apart(box, other) for other in [*found["dots"], *found["boxes"][:k]])
        tab.page.goto(one)
        assert tab.page.evaluate(drawn, [560, ["aster", "birch", "st-marys"]])["words"] == [
            "aster",
            "birch",
            "st-marys",
        ]
        tab.page.goto(one)
        found = tab.page.evaluate(drawn, [width, ["1", "2", "13"]])  # these stand in their nodes
        assert not any(apart(box, dot) for box, dot in zip(found["boxes"], found["dots"], strict=True))


def test_the_graph_names_sites_in_full(chromium, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", clients=3)
    known = json.loads((run / "clients.json").read_text())
    names = ["aster", "birch", "st-marys"]
    (run / "clients.json").write_text(
        json.dumps([one | {"name": name} for one, name in zip(known, names, strict=True)])
    )
    with Watched(chromium) as tab:
        tab.page.goto(write_report([run]).as_uri())
        words = "els => els.map(e => e.textContent)"
        assert tab.page.eval_on_selector_all("[data-figure$=graph] svg text", words) == names


def test_names_with_html_in_them_are_shown_as_text(chromium, one) -> None:
    with Watched(chromium) as tab:
        tab.page.goto(one)
        assert EVIL in tab.page.locator("#verdicts").inner_text()
        assert tab.page.locator("main img").count() == 0
        tab.page.locator("#confusion").select_option("2")
        cell = tab.page.locator("[data-figure*=confusion] svg")
        box = cell.bounding_box()
        cell.hover(position={"x": box["width"] * 0.4, "y": 60})
        assert tab.page.locator("#tip").is_visible()
        assert tab.complaints == []


def test_choosing_a_client_says_who_it_learned_from(chromium, one) -> None:
    with Watched(chromium) as tab:
        tab.page.goto(one)
        tab.page.locator("#focus").select_option("c:0")
        words = tab.page.locator("#client-words").inner_text()
        assert "client 1: 80.0% accuracy with federation, 50.0% without. +30.0 points" in words
        assert "In round 4 it received itself 70%, client 2 30%." in words
        assert tab.page.locator("#verdicts tbody tr").count() == 1
        tab.page.locator("#focus").focus()
        tab.page.locator("#focus").select_option("d:1")
        assert tab.page.locator("#verdicts tbody tr").count() == 2
        assert tab.page.evaluate("document.activeElement.id") == "focus"


def test_charts_can_be_read_with_the_keyboard(chromium, one) -> None:
    with Watched(chromium) as tab:
        tab.page.goto(one)
        tab.page.locator("[data-figure$=accuracy] svg").focus()
        tab.page.keyboard.press("ArrowRight")
        tab.page.keyboard.press("ArrowRight")
        assert tab.page.locator("#tip").inner_text().startswith("after round 2\n")
        tab.page.keyboard.press("Escape")
        assert not tab.page.locator("#tip").is_visible()


@pytest.mark.parametrize(("total", "correct"), [(100, 21), (10_000, 2103)])
def test_no_two_labels_of_an_axis_are_the_same(chromium, tmp_path: Path, total: int, correct: int) -> None:
    """Accuracies that span a point, and some that span a hundredth of one."""
    run = write_run(tmp_path / "run", total=total, correct=[correct, correct, correct, correct + 1], rounds=1)
    with Watched(chromium) as tab:
        tab.page.goto(write_report([run]).as_uri())
        labels = tab.page.locator("[data-figure$=accuracy] svg text[text-anchor=end]").all_text_contents()
        assert len(labels) > 2
        assert len(set(labels)) == len(labels)


def test_downloads_parse(chromium, one, several) -> None:
    with Watched(chromium) as tab:
        tab.page.goto(several)
        name, content = tab.download("[data-file='comparison.csv']")
        rows = list(csv.DictReader(io.StringIO(content.decode())))
        assert name == "comparison.csv"
        assert [row["method"] for row in rows] == ["Stand-Alone", "FedAvg", "Factorized-FL"]
        name, content = tab.download("[data-file='comparison.md']")
        assert {line.count("|") for line in content.decode().splitlines()} == {12}
        name, content = tab.download("[data-file='comparison.tex']")
        assert content.decode().count(r"\\") == 4
        name, content = tab.download("[data-file='comparison-clients.csv']")
        assert len(list(csv.DictReader(io.StringIO(content.decode())))) == 12
        tab.page.goto(one)
        for figure in ("accuracy", "mixing-weights", "graph", "communication", "confusion-1"):
            name, content = tab.download(f"[data-figure$={figure}] button[aria-label$=SVG]")
            assert name.endswith(".svg")
            root = ET.fromstring(content)
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert b"var(" not in content  # colours stand on their own
        name, content = tab.download("[data-figure$=mixing-weights] button[aria-label$=PNG]")
        assert content.startswith(b"\x89PNG")
        assert tab.complaints == []


def test_the_command_is_copied(chromium, one, runs: Path) -> None:
    with Watched(chromium) as tab:
        tab.page.goto(one)
        tab.page.locator("#copy-command").click()
        tab.page.get_by_text("Copied").wait_for()
        assert tab.page.evaluate("navigator.clipboard.readText()") == f"ffl run {runs}/ours/config.toml --data FOLDER"


def test_dark_and_light_at_the_press_of_a_button(chromium, one) -> None:
    with Watched(chromium) as tab:
        tab.page.goto(one)
        ground = "getComputedStyle(document.body).backgroundColor"
        light = tab.page.evaluate(ground)
        tab.page.locator("#theme").click()
        assert tab.page.evaluate(ground) != light
        tab.page.locator("#theme").click()
        assert tab.page.evaluate(ground) == light


def test_several_runs_side_by_side(chromium, several) -> None:
    with Watched(chromium) as tab:
        tab.page.goto(several)
        assert tab.page.locator("#methods tbody tr").count() == 3
        banner = tab.page.locator("#banner").inner_text()
        assert {rounds for rounds in "34" if re.search(rf"rounds is .*\b{rounds} for ", banner)} == {"3", "4"}, banner
        assert tab.page.locator("#methods tr.best td").first.inner_text() == "Stand-Alone"
        assert "on average no federation was better than training alone" in tab.page.locator("h1").inner_text()
        before = tab.page.locator("[data-figure=paired-differences] svg").inner_html()
        tab.page.locator("#reference").select_option("1")
        assert tab.page.locator("[data-figure=paired-differences] svg").inner_html() != before
        tab.page.locator("#run").select_option(label="FedAvg, seed 1")
        assert "One seed cannot decide" in tab.page.locator("#verdict h2").inner_text()
        tab.page.locator("#axis-methods-bytes").click()
        assert tab.page.locator("#axis-bytes").get_attribute("aria-pressed") == "true"  # one choice for both
        assert "sent by and to all clients" in tab.page.locator("[data-figure=accuracy-of-methods]").inner_html()
        assert tab.complaints == []


def test_another_metric_has_its_name_and_no_percent(chromium, tmp_path: Path) -> None:
    for method, scores in (("stand-alone", [-0.5, 0.25, 0.5, 0.75]), ("fedavg", [-0.25, 0.5, 0.5, 0.5])):
        path = write_run(tmp_path / "runs" / method, method)
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            value = scores[line["client"]]
            line |= {"accuracy": None, "correct": None, "score": value, "score_error": 0.1, "metrics": {"r2": value}}
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (path / "summary.json").unlink()
    with Watched(chromium) as tab:
        tab.page.goto(write_report([tmp_path / "runs"]).as_uri())
        tab.page.wait_for_selector("figure svg")
        assert tab.complaints == []
        words = tab.page.locator("body").inner_text()
        assert "highest mean r2, 0.3125 (one seed)" in words
        row = tab.page.locator("#methods tbody tr", has_text="FedAvg").locator("td").all_inner_texts()
        # 1.96 x 0.1 x sqrt(2) for a client; the clients of each of the two domains may share their test images.
        assert (row[1], row[5]) == ("0.313", "+0.0625 ± 0.196")
        assert "accuracy" not in words.lower()
        assert "points" not in words


def test_nothing_moves_after_the_first_paint(chromium, several) -> None:
    watch = """() => new Promise(done => { let sum = 0;
        new PerformanceObserver(list => { for (const e of list.getEntries()) sum += e.value; })
            .observe({type: 'layout-shift', buffered: true});
        setTimeout(() => done(sum), 300); })"""
    with Watched(chromium) as tab:
        tab.page.goto(several)
        assert tab.page.evaluate(watch) < 0.01


def test_two_hundred_clients_stay_usable(chromium, tmp_path: Path) -> None:
    """Aggregates first, then a domain, then a client."""
    names = [f"domain {d}" for d in range(5)]
    run = write_run(tmp_path / "run", clients=200, rounds=12, domains=names, correct=[k % 90 for k in range(200)])
    page = write_report(
        [run], baseline=write_run(tmp_path / "alone", "stand-alone", clients=200, rounds=1, domains=names)
    )
    assert page.stat().st_size < 6_000_000
    with Watched(chromium) as tab:
        tab.page.goto(page.as_uri())
        assert tab.page.locator("#verdicts tbody tr").count() == 24
        tab.page.locator("#verdicts-more").click()
        assert tab.page.locator("#verdicts tbody tr").count() == 200
        assert "Means of the domains" in tab.page.locator("main").inner_text()
        tab.page.locator("#focus").select_option("d:2")
        assert tab.page.locator("#verdicts tbody tr").count() == 40
        tab.page.locator("#round").focus()
        tab.page.keyboard.press("ArrowLeft")
        assert tab.page.locator("[data-figure$=mixing-weights] svg image").count() == 1
        assert tab.complaints == []


def emptied(path: Path, *names: str) -> Path:
    for name in names:
        target = path / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    return path


ODD = {
    "one client": lambda root: write_run(root / "run", clients=1, domains=("bars",)),
    "one round": lambda root: write_run(root / "run", rounds=1),
    "one domain, no matrices": lambda root: write_run(root / "run", domains=("bars",), matrices=False),
    "stand-alone": lambda root: write_run(root / "run", "stand-alone"),
    "summary only": lambda root: emptied(
        write_run(root / "run"), "config.toml", "clients.json", "metrics.jsonl", "timing.jsonl", "mixing", "traces"
    ),
    "no times": lambda root: emptied(write_run(root / "run"), "timing.jsonl"),
    "metrics only": lambda root: emptied(
        write_run(root / "run"), "config.toml", "clients.json", "summary.json", "analysis.json", "environment.json"
    ),
    "two bare runs": lambda root: (
        emptied(write_run(root / "runs" / "a"), "config.toml", "timing.jsonl").parent,
        write_run(root / "runs" / "b", "fedavg", matrices=False),
    )[0],
}


@pytest.mark.parametrize("kind", ODD)
def test_whatever_is_missing_the_rest_is_drawn_without_complaint(chromium, kind: str, tmp_path: Path) -> None:
    page = write_report([ODD[kind](tmp_path)], tmp_path / "page.html")
    with Watched(chromium) as tab:
        tab.page.goto(page.as_uri())
        assert tab.page.locator("h1").inner_text()
        for axis in ("axis-bytes", "axis-seconds"):
            if tab.page.locator(f"#{axis}").count():
                tab.page.locator(f"#{axis}").click()
        assert tab.page.get_by_text("NaN").count() == 0
        assert tab.page.get_by_text("undefined").count() == 0
        assert tab.complaints == []


def test_pages_of_the_parties_of_a_federation(chromium, tmp_path: Path) -> None:
    """A coordinator to whom nobody reports, and a site that also trained alone: one client, no matrices."""
    for party in ("coordinator", "aster"):
        (tmp_path / party).mkdir()
        (tmp_path / party / "federation.toml").write_text(f'party = "{party}"\n')
    run = write_run(tmp_path / "coordinator" / "run", classes=())
    shutil.rmtree(run / "traces")
    for name in ("analysis.json", "summary.json"):
        (run / name).unlink()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    silent = {"accuracy": None, "correct": None, "total": None, "loss": None, "train_loss": None}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line | silent) + "\n" for line in lines))
    write_run(tmp_path / "aster" / "run", clients=1, correct=[80], matrices=False, domains=("aster",))
    write_run(tmp_path / "aster" / "alone", "stand-alone", clients=1, correct=[50], domains=("aster",))
    told = {
        "coordinator": ("3 of 3 rounds are done; no site reports its accuracy.", "Rows receive"),
        "aster": (
            "aster: 80.0% accuracy, +30.0 points (95% interval +16.0 to +44.0) over Stand-Alone. "
            "One seed cannot decide: other seeds may give another sign.",
            "only the coordinator knows their sources",
        ),
    }
    for party, (headline, words) in told.items():
        with Watched(chromium, width=390) as tab:
            tab.page.goto(write_report([tmp_path / party]).as_uri())
            assert tab.page.locator("h1").inner_text() == headline
            assert tab.page.get_by_text(words).count() == 1
            assert tab.page.get_by_text(f"This is {party}'s part of a federation").count() == 1
            tab.page.locator("#focus").select_option("c:0")
            for wrong in ("NaN", "undefined", "null"):
                assert tab.page.get_by_text(wrong).count() == 0
            assert tab.complaints == []


def test_watch_follows_a_run_without_reloading(chromium, tmp_path: Path) -> None:
    """The real command in a real process; ended as a person ends it."""
    run = write_run(tmp_path / "run", rounds=2, complete=False)
    metrics = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(b"")  # as before the first round is done
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "factorized_fl.cli", "watch", str(run)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        address = next(word for word in process.stdout.readline().split() if word.startswith("http://127.0.0.1:"))
        with Watched(chromium, offline=False) as tab:
            tab.page.goto(address)
            assert tab.page.locator("h1").inner_text() == "No client has a result yet."
            (run / "metrics.jsonl").write_bytes(metrics)
            tab.page.get_by_role("heading", name="50.0% accuracy on average").wait_for(timeout=10_000)
            tab.page.locator("#focus").select_option("c:1")
            tab.page.evaluate("window.untouched = true")
            (run / "config.toml").write_text((run / "config.toml").read_text().replace("rounds = 2", "rounds = 3"))
            add_round(run, 3, [90] * 4)
            tab.page.get_by_role("heading", name="90.0% accuracy on average").wait_for(timeout=10_000)
            assert tab.page.evaluate("window.untouched")
            assert tab.page.locator("#focus").input_value() == "c:1"  # what the reader chose stays
            assert tab.page.locator("#live").inner_text() == "live"
            assert {url for url in tab.requests if not url.startswith(address)} == set()
            assert tab.complaints == []
            with Watched(chromium, offline=False) as foreign:
                answer = foreign.page.goto(address.replace("127.0.0.1", "evil.example"))
                assert answer.status == 403
                assert "client" not in foreign.page.content()
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == 0
            tab.page.locator("#live.lost").wait_for(timeout=10_000)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()


# -- what was asked of the page


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, which finds what people with assistive technology cannot use."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here to fetch axe-core with")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder), "axe-core@4.10.3"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("axe-core cannot be fetched here")
    if done.returncode:
        pytest.skip("axe-core cannot be fetched here")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1180, 390])
def test_axe_finds_nothing(chromium, one, several, axe: str, width: int, scheme: str) -> None:
    for page in (one, several):
        with Watched(chromium, width=width, scheme=scheme) as tab:
            tab.page.goto(page)
            tab.page.evaluate(axe)
            found = tab.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            assert [(v["id"], [node["html"][:200] for node in v["nodes"]]) for v in found["violations"]] == []


@pytest.mark.parametrize(("width", "medium"), [(1280, "screen"), (1010, "screen"), (760, "screen"), (700, "print")])
def test_no_table_scrolls_sideways(chromium, several, width: int, medium: str) -> None:
    with Watched(chromium, width=width) as tab:
        tab.page.goto(several)
        tab.page.wait_for_selector("#methods")
        tab.page.emulate_media(media=medium)
        out = "tables => tables.filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText)"
        assert tab.page.locator(".wide").evaluate_all(out) == []


def test_on_a_phone_every_value_has_its_name(chromium, several) -> None:
    with Watched(chromium, width=390) as tab:
        tab.page.goto(several)
        tab.page.wait_for_selector("#traffic")
        bare = "cells => cells.filter(one => !one.dataset.label).map(one => one.innerText)"
        assert tab.page.locator("table[id] td").evaluate_all(bare) == []


@pytest.mark.parametrize(("width", "medium"), [(390, "screen"), (720, "print")])
def test_no_column_is_out_of_sight(chromium, several, width: int, medium: str) -> None:
    """On a phone and on paper nothing can be scrolled sideways, so that every cell is within the page."""
    with Watched(chromium, width=width) as tab:
        tab.page.goto(several)
        tab.page.emulate_media(media=medium)
        boxes = tab.page.locator("table[id] td").evaluate_all(
            "cells => cells.map(cell => cell.getBoundingClientRect().right)"
        )
        assert boxes
        assert max(boxes) <= width


def test_paper_has_dark_letters_whatever_the_screen_has(chromium, several) -> None:
    ink = "getComputedStyle(document.body).color"
    for scheme in ("light", "dark"):
        with Watched(chromium, scheme=scheme) as tab:
            tab.page.goto(several)
            if scheme == "light":
                tab.page.locator("#theme").click()  # dark by choice
            assert tab.page.evaluate(ink) == "rgb(232, 234, 237)"
            tab.page.emulate_media(media="print", color_scheme=scheme)
            assert tab.page.evaluate(ink) == "rgb(27, 31, 36)"
            assert tab.page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"


def test_names_in_the_figure_of_costs_meet_no_dot_and_no_other_name(chromium, tmp_path: Path) -> None:
    """Beside few dots there is room; where many are close, a legend has the names."""
    for crowd, in_legend in ((2, 0), (9, 9)):
        for at in range(crowd):
            name = f"{crowd}/run-{at}"
            write_run(tmp_path / name, options={"tau": at / 10}, correct=[50 + at % 3] * 4)
        with Watched(chromium, width=390) as tab:
            tab.page.goto(write_report([tmp_path / str(crowd)]).as_uri())
            picture = tab.page.locator("[data-figure=accuracy-against-bytes] svg")
            assert picture.locator("rect").count() == in_legend
            names = picture.locator("text").filter(has_text="tau").all()
            assert len(names) == crowd
            boxes = [one.bounding_box() for one in [*names, *picture.locator("circle").all()]]
            for index, one in enumerate(boxes[:crowd]):
                assert not any(overlap(one, other) for other in boxes[index + 1 :])


def overlap(one: dict, other: dict) -> bool:
    across = one["x"] < other["x"] + other["width"] and other["x"] < one["x"] + one["width"]
    return across and one["y"] < other["y"] + other["height"] and other["y"] < one["y"] + one["height"]


def test_variants_of_a_method_have_their_names_in_full_on_a_phone(chromium, tmp_path: Path) -> None:
    for at, tau in enumerate((0.25, 0.75)):
        write_run(tmp_path / f"run-{at}", options={"tau": tau})
    write_run(tmp_path / "alone", "stand-alone")
    with Watched(chromium, width=390) as tab:
        tab.page.goto(write_report([tmp_path]).as_uri())
        chosen = tab.page.locator("#run option").all_inner_texts()
        assert {"Factorized-FL (tau=0.25), seed 1", "Factorized-FL (tau=0.75), seed 1"} < set(chosen)
        strips = tab.page.locator("[data-figure=paired-differences] svg text").all_text_contents()
        assert {"Factorized-FL (tau=0.25)", "Factorized-FL (tau=0.75)"} < set(strips)


def test_contents_lead_to_every_part(chromium, several) -> None:
    with Watched(chromium) as tab:
        tab.page.goto(several)
        links = tab.page.locator(".contents a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
        assert len(links) > 5
        assert all(tab.page.locator(link).count() == 1 for link in links)


def test_loss_is_drawn_and_a_method_has_one_colour(chromium, several) -> None:
    with Watched(chromium) as tab:
        tab.page.goto(several)
        tab.page.locator("#measure-methods-loss").click()
        assert tab.page.locator("[data-figure=loss-of-methods] svg path").count() >= 3
        tab.page.locator("#run").select_option(label="FedAvg, seed 1")
        place = tab.page.locator("#methods tbody td:first-child").all_inner_texts().index("FedAvg")
        swatch = tab.page.locator("#methods .swatch").nth(place).get_attribute("style")
        assert f"var(--c{place})" in swatch
        line = tab.page.locator("[data-figure=fedavg-loss] svg path[style*='none']").first.get_attribute("style")
        assert f"var(--c{place})" in line
        assert tab.complaints == []


def test_the_page_says_when_with_what_and_how(chromium, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", preset="demo")
    (run / "environment.json").write_text(json.dumps({"date": "2026-11-19T05:00:00+00:00"}))
    with Watched(chromium) as tab:
        tab.page.goto(write_report([run]).as_uri())
        words = "Factorized-FL, 2026-11-19 · data: demo, 4 clients of 2 domains · model: cnn, width 0.25"
        assert tab.page.get_by_text(words).count() == 1
        assert "ffl run demo --method factorized-fl" in tab.page.locator("#verdict pre").first.inner_text()
