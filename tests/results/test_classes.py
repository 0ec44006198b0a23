import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from factorized_fl.cli import app
from factorized_fl.core.errors import UserError
from factorized_fl.report.collect import collect
from factorized_fl.report.exports import as_csv, class_rows
from factorized_fl.results.classes import matched_classes, run_and_sites
from factorized_fl.simulate.run import run_federation
from tests.tiny import tiny_config


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds with the true matches: the second one begins with shared rows."""
    return run_federation(
        tiny_config("fedavg", align="true", rounds=2), tmp_path_factory.mktemp("runs") / "true", data=images
    ).path


def test_every_class_stands_beside_the_classes_of_others(run: Path) -> None:
    rows = matched_classes(run)
    assert len(rows) == 2 * 3 + 2 * 5  # each class of a domain's two clients has one match
    assert all(row.right and row.confidence == 1 and 0 < row.taken < 1 for row in rows)
    clients = json.loads((run / "clients.json").read_text())
    first = rows[0]
    assert (first.client, first.number, first.peer) == ("client 1", 1, "client 2")
    assert first.peer_number is not None
    assert clients[1]["classes"][first.peer_number - 1] == first.name == clients[0]["classes"][0]


def test_the_command_prints_and_exports_them(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["classes", str(run), "--client", "1", "--csv", str(tmp_path / "classes.csv")])
    assert done.exit_code == 0
    assert "3 of 3 matches are right" in done.output
    lines = (tmp_path / "classes.csv").read_text().splitlines()
    assert lines[0] == "client,class,name,peer,peer_class,confidence,share_from_peers"
    assert len(lines) == 4
    assert len(json.loads(CliRunner().invoke(app, ["classes", str(run), "--json"]).output)) == 16
    with pytest.raises(UserError, match="no client 9"):
        CliRunner().invoke(app, ["classes", str(run), "--client", "9"], catch_exceptions=False)


def test_the_page_has_a_panel_of_them(run: Path, images: Path, tmp_path: Path) -> None:
    (panel,) = [described["classes"] for described in collect([run])["runs"]]
    assert len(panel["rows"]) == 16
    assert panel["rows"][0]["matched"].startswith("client 2: ")
    assert panel["right"] == [8, 8]  # both sides of a match are one match
    (run / "classes.json").rename(tmp_path / "kept")
    try:
        (run / "classes.json").write_text('{"0": {"classes": [{"class": 0, "peers": [[99, "x"]]}]}}')
        document = collect([run])["runs"][0]
        assert document["classes"] is None
        assert any("classes.json" in note for note in document["notes"])
    finally:
        (tmp_path / "kept").replace(run / "classes.json")


def test_at_a_site_only_its_own_classes_have_names(run: Path, tmp_path: Path) -> None:
    """A kit whose run directory knows one client; the other sites are known by name and number."""
    (tmp_path / "run").mkdir()
    (tmp_path / "federation.toml").write_text('[federation]\nsites = ["aster", "birch", "cedar"]\n')
    (tmp_path / "run" / "config.toml").write_bytes((run / "config.toml").read_bytes())
    own = {"name": "birch", "domain": "birch", "classes": ["normal", "viral"]}
    (tmp_path / "run" / "clients.json").write_text(json.dumps([own]))
    entry = {"class": 1, "confidence": 0.8, "taken": 0.5, "peers": [[0, 3], [2, 0]]}
    (tmp_path / "run" / "classes.json").write_text(json.dumps({"0": {"round": 2, "classes": [entry]}}))
    rows = matched_classes(*run_and_sites(tmp_path))
    assert [(row.name, row.peer, row.peer_number, row.right) for row in rows] == [
        ("normal", None, None, None),
        ("viral", "aster", 4, None),
        ("viral", "cedar", 1, None),
    ]
    assert as_csv(class_rows(rows)).splitlines()[1:] == [
        "birch,1,normal,,,,",
        "birch,2,viral,aster,4,0.8,0.5",
        "birch,2,viral,cedar,1,0.8,0.5",
    ]


def test_a_run_without_matching_is_refused(images: Path, tmp_path: Path) -> None:
    run_federation(tiny_config("fedavg", rounds=1), tmp_path / "off", data=images)
    with pytest.raises(UserError, match="did not match classes"):
        matched_classes(tmp_path / "off")
