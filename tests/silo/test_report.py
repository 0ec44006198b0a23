"""The page of a party, made from its own kit: it shows only what that party may see."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from factorized_fl import api
from factorized_fl.core.errors import UserError
from factorized_fl.report.collect import collect
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import Kit, write_kit
from factorized_fl.silo.site import Site
from tests.silo.loopback import Loopback
from tests.silo.parties import NAMES, kits_of, trio_config, write_trio

pytestmark = pytest.mark.xdist_group("network-report")  # a worker of its own would make the federation again


@dataclass
class Parties:
    """A federation that has ended, in which some sites report."""

    kits: dict[str, Kit]
    sites: dict[str, Site]

    def page(self, party: str) -> tuple[str, dict]:
        """The page as written, and its only run."""
        kit = self.kits[party].path
        (run,) = collect([kit])["runs"]
        return api.report(kit).read_text(), run

    def classes(self, name: str) -> list[str]:
        (client,) = RunDirectory(self.kits[name].run).clients()
        return client["classes"]


def federate(root: Path, data: Path, reporting: set[str]) -> Parties:
    kits = kits_of(root, trio_config(rounds=2))
    for kit in kits.values():
        write_kit(kit)
    sites = {name: Site(kits[name], data / name, print, report=name in reporting) for name in NAMES}
    assert Loopback(kits, sites).run()
    return Parties(kits, sites)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trio(tmp_path_factory.mktemp("trio"))


@pytest.fixture(scope="module")
def silent(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """No site reports; aster has also trained alone."""
    parties = federate(tmp_path_factory.mktemp("silent"), data, set())
    parties.sites["aster"].finish()
    return parties


def test_the_coordinators_page_where_nobody_reports(silent: Parties) -> None:
    page, run = silent.page(COORDINATOR)
    assert run["headline"] == "2 of 2 rounds are done; no site reports its accuracy."
    assert [client["name"] for client in run["clients"]] == list(NAMES)
    assert (run["final"], run["verdicts"], run["confusion"], run["notes"]) == ([], [], [], [])
    assert set(run["curves"]["up"]) != {0}
    assert run["matrices"]["mixing"]["rounds"] == [2]
    assert run["command"] is run["baseline_command"] is None  # it has nobody's images
    known = {word for name in NAMES for word in silent.classes(name)}
    assert len(known) == 4 + 6 + 3
    assert not any(json.dumps(word) in page for word in known)


def test_the_coordinators_page_has_what_sites_chose_to_report(data: Path, tmp_path: Path) -> None:
    parties = federate(tmp_path, data, {"birch"})
    _, run = parties.page(COORDINATOR)
    (final,) = run["final"]
    last = RunDirectory(parties.kits["birch"].run).metrics()[-1]
    assert (final["client"], final["accuracy"], final["correct"]) == (1, last["accuracy"], last["correct"])
    assert "reported by 1 of 3 sites." in run["headline"]


def test_a_sites_page_has_its_verdict_its_classes_and_nobody_else(silent: Parties) -> None:
    page, run = silent.page("aster")
    (client,) = run["clients"]
    assert (client["name"], client["classes"]) == ("aster", silent.classes("aster"))
    (verdict,) = run["verdicts"]
    alone = RunDirectory(silent.kits["aster"].alone).summary()
    own = RunDirectory(silent.kits["aster"].run).summary()
    assert (verdict["reference"], verdict["accuracy"]) == (alone["accuracy_mean"], own["accuracy_mean"])
    start = f"aster: {100 * own['accuracy_mean']:.1f}% accuracy, {100 * verdict['difference']:+.1f} points (95% "
    assert run["headline"].startswith(start)
    assert run["headline"].endswith("over its control. One seed cannot decide: other seeds may give another sign.")
    assert run["baseline"] == "Reference: the control 'alone', same clients, same test images, same seed."
    (confusion,) = run["confusion"]
    size = len(client["classes"])
    assert sum(confusion[:: size + 1]) == own["clients"][0]["correct"]
    assert sum(confusion) == own["clients"][0]["total"]
    assert run["notes"] == []
    assert "birch" not in page
    assert "cedar" not in page


def test_a_sites_run_directory_has_the_same_page_as_its_kit(silent: Parties) -> None:
    kit = silent.kits["aster"]
    assert collect([kit.run]) == collect([kit.path])
    assert api.report(kit.path) == kit.path / "report.html"


def test_a_site_may_look_before_the_end(silent: Parties) -> None:
    _, run = silent.page("cedar")  # it has not yet heard that all is done, nor trained alone
    assert "so far (round 2 of 2). Run the control to see whether federation helped." in run["headline"]
    assert run["verdicts"] == []


def test_a_kit_that_has_not_begun_is_one_clear_error(tmp_path: Path) -> None:
    kit = kits_of(tmp_path, trio_config())["aster"]
    write_kit(kit)
    with pytest.raises(UserError, match="has not begun"):
        api.report(kit.path)
    assert not (kit.path / "report.html").exists()
