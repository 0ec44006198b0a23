"""`ffl audit` on a finished run: its file, its table, its place on the page and in the model card, and its refusals."""

import json
from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from torch import nn

import factorized_fl as ffl
from factorized_fl.audit.observe import Source
from factorized_fl.audit.run import attack
from factorized_fl.cli import main
from factorized_fl.cli.audit import findings_table
from factorized_fl.core.errors import UserError
from factorized_fl.report.collect import collect


def network(example, outputs):
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
    return nn.Sequential(body, nn.Linear(64, outputs))


def clients():
    rng = np.random.default_rng(0)

    def part():
        return rng.integers(256, size=(16, 3, 6, 6), dtype=np.uint8), rng.integers(3, size=16)

    return [ffl.ClientData(*part(), test=part(), name=f"site {k}", classes=list("abc")) for k in range(3)]


def train(out, **settings):
    table = {"method": "factorized-peers", "rounds": 2, "epochs": 1, "batch_size": 8, "augment": "none", **settings}
    return ffl.run(clients(), out, model=network, **table)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("audit") / "run")


@pytest.fixture(scope="module")
def content(run):
    parts = []
    content = ffl.audit(run, shadows=4, pictures=1, progress=parts.append)
    assert parts.count("a shadow run") == 5
    return content


def test_the_file_holds_every_attack(run, content):
    assert json.loads((run.path / "audit.json").read_text()) == content
    attacks = {finding["attack"] for finding in content["findings"]}
    assert {
        "membership",
        "the sender of an update without a name",
        "fingerprint: number of images above the middle",
    } <= attacks
    assert any(attack.startswith("picture from an update") for attack in attacks)
    for finding in content["findings"]:
        assert finding["low"] <= finding["value"] <= finding["high"]


def test_the_page_and_the_model_card_have_the_findings(run, content):
    panel = collect([run.path])["runs"][0]["audit"]
    assert panel["shadows"] == 4
    assert len(panel["findings"]) == len(content["findings"])
    card = (ffl.export(run, 1).folder / "README.md").read_text()
    assert "measured attacks work better than chance" in card
    (run.path / "audit.json").write_text('{"findings": [{"view": 3}]}')
    damaged = collect([run.path])["runs"][0]
    assert damaged["audit"] is None
    assert "audit.json cannot be shown." in damaged["notes"]
    (run.path / "audit.json").write_text(json.dumps(content))


def test_the_table_fits_into_80_columns(content):
    console = Console(width=80, file=StringIO())
    console.print(findings_table(content["findings"]))
    lines = console.file.getvalue().splitlines()
    assert "seen by" in lines[0]
    assert "chance" in lines[0]
    assert max(map(len, lines)) <= 80
    assert "…" not in console.file.getvalue()


def test_the_command_says_where_data_from_python_can_be_audited(run, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["ffl", "audit", str(run.path)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "data from Python" in capsys.readouterr().err


def test_runs_that_cannot_be_audited_are_refused(run, tmp_path):
    with pytest.raises(UserError, match="is not complete"):
        ffl.audit(tmp_path)
    partial = train(tmp_path / "partial", method="fedavg", fraction=0.5)
    with pytest.raises(UserError, match=r"fraction = 0\.5"):
        ffl.audit(partial)


def test_a_run_that_cannot_be_repeated_is_refused(run):
    tensors = run.load_checkpoint()
    name = next(n for n, t in tensors.items() if n.startswith("state/all/0.0.") and t.is_floating_point())
    tensors[name] += 1.0
    with pytest.raises(UserError, match="cannot be repeated here"):
        attack(Source(run.config(), run.scenario, network), tensors, shadows=4, pictures=0)
