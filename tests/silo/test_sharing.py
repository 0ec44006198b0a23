"""What a site received from the others stands in journal, status and card; nothing at all is a warning."""

from pathlib import Path

import pytest

from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.sharing import Shared, shared_with, warn_if_nothing_is_shared
from factorized_fl.silo.site_export import export_control
from factorized_fl.silo.status import status_lines
from tests.silo.loopback import Loopback
from tests.silo.parties import kits_of, make_sites, trio_config, write_trio


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trio(tmp_path_factory.mktemp("trio"))


def test_a_tiny_weight_counts_as_nothing() -> None:
    lines = [{"from_others": {"a": 0.3, "b": 1e-21}}, {"from_others": {"a": 0.1}}, {"from_others": {}}, {"round": 4}]
    assert shared_with(lines, "a") == Shared(2, 2, pytest.approx(0.2))
    assert shared_with(lines, "a").words == "received something from other sites in 2 of 2 rounds, 20.0% on average"
    assert shared_with(lines, "b").words == "received nothing from other sites in 1 rounds"
    assert shared_with(lines, "c").words == "received no download yet"
    assert not warn_if_nothing_is_shared(lines, "m")
    assert "no site has received anything" in warn_if_nothing_is_shared([{"from_others": {"b": 1e-21}}], "m")
    assert not warn_if_nothing_is_shared([{"from_others": {}}], "stand-alone")


@pytest.mark.parametrize("shares", [True, False])
def test_journal_status_and_card_say_how_much_a_site_received(shares: bool, data: Path, tmp_path: Path) -> None:
    """With tau = 0.99 no two sites are alike, as in the federation in which nothing was shared."""
    config = trio_config("fedavg") if shares else trio_config("factorized-fl", options={"tau": 0.99})
    kits = kits_of(tmp_path, config)
    said: list[str] = []
    sites = make_sites(kits, data, said.append)
    parties = Loopback(kits, sites)
    assert parties.run()
    warned = [line for line in parties.journal if line.startswith("WARNING: after 3 rounds no site has received")]
    assert len(warned) == (0 if shares else 1)
    (second,) = (line for line in parties.journal if line.startswith("received from other sites in round 2: "))
    others = 1 - sites["aster"].train_images / sum(site.train_images for site in sites.values())
    told = f"aster {others:.1%}" if shares else "aster 0.0%"
    assert f": {told}, birch" in second
    assert any(f"; {others if shares else 0:.1%} of its download came from other sites" in line for line in said)
    words = shared_with(RunDirectory(kits["aster"].run).timing(), "aster").words
    assert words == (
        f"received something from other sites in 2 of 2 rounds, {others:.1%} on average"
        if shares
        else "received nothing from other sites in 2 rounds"
    )
    assert f"aster {words}" in status_lines(kits[COORDINATOR])
    sites["aster"].finish(alone=not shares)
    assert f"- aster {words}.\n" in (kits["aster"].model / "README.md").read_text()
    if shares:
        return
    # Without anything from others the federation's model is the control's: a fair comparison finds no difference.
    control = RunDirectory(kits["aster"].alone)
    assert control.config().control
    first, second = (
        [r["accuracy"] for r in RunDirectory(p).metrics()] for p in (kits["aster"].run, kits["aster"].alone)
    )
    assert first == second
    exported = export_control(kits["aster"], sites["aster"].scenario, tmp_path / "control")
    assert exported.accuracy == pytest.approx(second[-1])
