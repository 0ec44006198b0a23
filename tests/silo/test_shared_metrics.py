"""A site decides which clinical metrics the coordinator sees; the coordinator says which site reported each."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from factorized_fl.core.errors import UserError
from factorized_fl.export import export
from factorized_fl.silo.agreement import write_kit
from factorized_fl.silo.clinical import check_shared, read_shared, reported_table, shared_metrics
from factorized_fl.silo.evaluation import evaluate_folder
from factorized_fl.silo.live import live_document
from factorized_fl.silo.messages import BadMessage, Message
from factorized_fl.silo.settings import Settings, read_settings, save_settings
from factorized_fl.silo.site import Site
from factorized_fl.tasks.clinical import clinical_metrics
from tests.silo.loopback import Loopback
from tests.silo.parties import NAMES, kits_of, trio_config, write_trio


def metrics() -> Any:
    import numpy as np

    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    return clinical_metrics(probabilities, np.array([0, 1, 1]))


def test_what_is_named_is_shared_and_nothing_else() -> None:
    assert shared_metrics(metrics(), ()) == {}
    found = shared_metrics(metrics(), check_shared(["sensitivity", "brier", "confusion", "brier"]))
    assert found.keys() == {"brier", "sensitivity", "confusion"}
    assert found["confusion"] == ((1, 0), (1, 1))
    assert [value[0] for value in found["sensitivity"]] == [1.0, 0.5]
    assert found["brier"][0] == round((0.01 + 0.04 + 0.36) / 3, 4)
    assert len(check_shared(["all"])) == 7
    assert check_shared(["none"]) == ()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UserError, match=r"Unknown metric to share 'auc'\. Did you mean 'auroc'"):
        check_shared(["auc"])
    with pytest.raises(UserError, match="asks for none and for some"):
        check_shared(["none", "auroc"])


@pytest.mark.parametrize(
    "given",
    [
        "auroc",
        {"names": ["measles"]},
        {"brier": [0.1, 0.0, 0.2]},
        {"brier": [1.5, 0.0, 2.0, 4]},
        {"brier": [True, 0.0, 1.0, 4]},
        {"brier": [0.5, 0.0, 1.0, -4]},
        {"auroc": [[0.5, 0.0, 1.0, 4], "x"]},
        {"auroc": [[0.5, 0.0, 1.0, 4]] * 301},
        {"confusion": [[1, 2], [3]]},
        {"confusion": [[1, -2], [3, 4]]},
    ],
)
def test_malformed_metrics_are_a_bad_message(given: object) -> None:
    with pytest.raises(BadMessage, match="its clinical metrics are malformed"):
        read_shared(Message("answer", "f", {"clinical": given}))


def test_a_message_may_have_none() -> None:
    assert read_shared(Message("answer", "f")) is None


def test_the_choice_is_stored_in_the_kit(tmp_path: Path) -> None:
    kit = kits_of(tmp_path, trio_config())["aster"]
    save_settings(kit, Settings(tmp_path, metrics=("brier", "auroc")))
    assert read_settings(kit).metrics == ("brier", "auroc")
    (kit.path / "site.toml").write_text((kit.path / "site.toml").read_text().replace('"brier"', '"names"'))
    with pytest.raises(UserError, match="Unknown metric to share 'names'"):
        read_settings(kit)


def test_a_federation_in_which_one_site_shows_two_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """aster shows Brier score and AUROC; birch reports its accuracy as today, cedar nothing."""
    monkeypatch.setattr(export, "write_onnx", lambda *_: False)  # takes seconds and is tested elsewhere
    data = write_trio(tmp_path / "data")
    kits = kits_of(tmp_path, trio_config(rounds=2))
    for kit in kits.values():
        write_kit(kit)
    shown = {"aster": ("brier", "auroc")}
    sites = {
        name: Site(kits[name], data / name, print, report=name == "birch", metrics=shown.get(name, ()))
        for name in NAMES
    }
    assert Loopback(kits, sites).run()
    records = [json.loads(line) for line in (kits["coordinator"].run / "metrics.jsonl").read_text().splitlines()]
    with_metrics = [(r["round"], r["domain"], sorted(r["clinical"])) for r in records if "clinical" in r]
    assert with_metrics == [(2, "aster", ["auroc", "brier"])]
    assert {r["domain"] for r in records if r["accuracy"] is not None} == {"birch"}
    (reported,) = live_document(kits["coordinator"])["reported"]
    assert reported["site"] == "aster"
    console = Console(width=120)
    with console.capture() as captured:
        console.print(reported_table(kits["coordinator"]))
    assert "class 4" in captured.get()  # aster has four
    assert "row-" not in captured.get()  # and keeps their names
    audit = (kits["coordinator"].logs / "audit.jsonl").read_text()
    assert audit.count('"clinical": ["auroc", "brier"]') == 1
    sites["aster"].finish(alone=False)
    save_settings(kits["aster"], Settings(data / "aster"))
    own = evaluate_folder(kits["aster"].path)
    assert reported["metrics"]["brier"][0] == pytest.approx(own.whole.brier.value, abs=1e-4)
    assert [value[3] for value in reported["metrics"]["auroc"]] == [own.whole.cases] * 4
    again = json.loads((kits["aster"].model / "metrics.json").read_text())["groups"][0]
    assert again["brier"]["value"] == pytest.approx(own.whole.brier.value)
    with pytest.raises(UserError, match="birch has no model yet"):
        evaluate_folder(kits["birch"].path)
    with pytest.raises(UserError, match="is the coordinator's kit, which has no model"):
        evaluate_folder(kits["coordinator"].path)
