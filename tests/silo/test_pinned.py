"""An own network between organisations: pinned by package, version and tensors; its frozen part stays at each site."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from factorized_fl.core.errors import UserError
from factorized_fl.core.frozen import mark_of_frozen
from factorized_fl.export.predict import predict
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import Kit, read_agreement, read_kit, write_kit
from factorized_fl.silo.kits import _largest
from factorized_fl.silo.pinned import check_model, pin_model
from factorized_fl.silo.site import export_now
from factorized_fl.silo.transport import CannotContinue
from factorized_fl.simulate.networks import initial_model, travelling
from tests.silo.installed import MODEL, install
from tests.silo.loopback import Loopback
from tests.silo.parties import kits_of, make_sites, trio_config, write_trio
from tests.silo.processes import Federation, write_hospitals

pytestmark = pytest.mark.usefixtures("mynets")


@pytest.fixture
def mynets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the installed package, on the path of this process and of its children."""
    folder = install(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.delitem(sys.modules, "mynets", raising=False)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trio(tmp_path_factory.mktemp("trio"))


def pinned_kits(root: Path, method: str = "factorized-fl") -> dict[str, Kit]:
    config = trio_config(method, model=MODEL, rounds=2, epochs=2, width=1.0)
    kits = kits_of(root, config)
    agreement = pin_model(kits[COORDINATOR].agreement, config)
    kits = {party: replace(kit, agreement=agreement) for party, kit in kits.items()}
    for kit in kits.values():
        write_kit(kit)
    return {party: read_kit(kit.path) for party, kit in kits.items()}


@pytest.mark.parametrize("method", ["factorized-fl", "fedavg", "factorized-peers", "pfedpara"])
def test_three_sites_with_an_installed_network_and_a_frozen_backbone(
    method: str, data: Path, tmp_path: Path, mynets: Path
) -> None:
    kits = pinned_kits(tmp_path, method)
    agreement = kits[COORDINATOR].agreement
    assert (agreement.package, agreement.version) == ("mynets", "1.2")
    assert sum(" frozen " in line for line in agreement.tensors) == 2
    sites = make_sites(kits, data)
    parties = Loopback(kits, sites)
    assert parties.run()
    # Frozen weights are those of the package after all rounds, at every site, and never leave it.
    with safe_open(mynets / "mynets" / "backbone.safetensors", "pt") as file:
        backbone = {name: file.get_tensor(name) for name in ("weight", "bias")}
    for site in sites.values():
        assert not any("backbone" in name for name in site.federation.clients.tensors)
    expected = nn.Module()
    expected.backbone = nn.ParameterDict(backbone).requires_grad_(False)
    assert {site.federation.frozen for site in sites.values()} == {mark_of_frozen(expected)}
    assert not any("backbone" in name for name in parties.coordinator.memory.server.stack)
    with safe_open(RunDirectory(kits[COORDINATOR].run).checkpoint_path, "pt") as file:
        assert not any("backbone" in name for name in file.keys())  # noqa: SIM118
    records = RunDirectory(kits[COORDINATOR].run).metrics()
    assert [record["up_bytes"] > 0 for record in records] == [True] * 6
    # Every site has a model to take away, which answers with and without ONNX.
    exported = export_now(kits["birch"], data / "birch")
    assert exported.onnx
    picture = next((data / "birch").rglob("*.png"))
    for runtime in ("onnx", "torch"):
        (found,) = predict(kits["birch"].model, [picture], runtime)
        assert len(found.classes) == 6
    assert "of mynets 1.2" in (kits["birch"].model / "README.md").read_text()


def test_all_parties_begin_with_the_same_body(data: Path, tmp_path: Path) -> None:
    kits = pinned_kits(tmp_path)
    sites = make_sites(kits, data)
    server = Loopback(kits, sites).coordinator.memory.server
    for site in sites.values():
        own = site.federation.clients.state.client(0)
        assert {len(site.federation.scenario.clients[0].classes) for site in sites.values()} == {3, 4, 6}
        assert all(torch.equal(own[name], stacked[0]) for name, stacked in server.stack.items())


def test_a_mismatch_is_refused_by_name_at_sites_and_coordinator(data: Path, tmp_path: Path, mynets: Path) -> None:
    kits = pinned_kits(tmp_path)
    check_model(kits["aster"])
    install(mynets, version="1.3")
    for start in (lambda: make_sites(kits, data), lambda: Loopback(kits, {})):
        with pytest.raises((UserError, CannotContinue), match=r"mynets 1\.2, and mynets 1\.3 is installed here: pip"):
            start()
    install(mynets, seed=1)
    with pytest.raises(UserError, match=r"'backbone\.weight' of mynets:Net is float32 4x1x3x3 frozen \w+ here and"):
        check_model(kits["aster"])
    install(mynets, width=12)
    sys.modules.pop("mynets")
    with pytest.raises(UserError, match=r"'head\.weight' of mynets:Net is float32 2x12 here and float32 2x8 in the"):
        check_model(kits["aster"])
    (mynets / "mynets.dist-info" / "entry_points.txt").unlink()
    with pytest.raises(UserError, match="No installed package declares the model 'mynets:Net'"):
        check_model(kits["aster"])


def test_an_agreement_names_declared_networks_only(tmp_path: Path) -> None:
    """An agreement comes from another party: a callable that no package declares as a network is never called."""
    kit = kits_of(tmp_path, trio_config(model="os:abort", width=1.0))["aster"]
    with pytest.raises(UserError, match=r"'os:abort' as an entry point .* \(declared here are mynets:Net\)"):
        check_model(kit)
    file = tmp_path / "sites.toml"
    text = f'name = "trio"\nmodel = "{MODEL}"\nimage_size = 8\nchannels = 1\nSITES'
    sites = '[[sites]]\nname = "a"\n[[sites]]\nname = "b"\n'
    file.write_text(text.replace("SITES", "width = 2.0\n" + sites))
    with pytest.raises(UserError, match="sets width, which has no effect on mynets:Net"):
        read_agreement(file)
    file.write_text(text.replace("SITES", 'version = "9"\n' + sites))
    with pytest.raises(UserError, match="version"):
        read_agreement(file)
    file.write_text(text.replace("SITES", sites))
    agreement, config = read_agreement(file)
    assert pin_model(agreement, config).tensors[0] == "head.weight float32 2x8"
    assert pin_model(agreement, trio_config()) == agreement


def test_a_frozen_part_does_not_raise_the_limit_on_messages(tmp_path: Path) -> None:
    config = trio_config("fedavg", model=MODEL, width=1.0)
    model = initial_model(config, 2, 1, labels_agree=False)
    trained = sum(p.numel() * 4 for p in model.parameters() if p.requires_grad)
    assert 200_000 + trained < _largest(config) < 200_000 + trained + 300 * len(model.state_dict())
    assert not any(name.startswith("backbone") for name in travelling(config.build_method(), model, False)[1])


@pytest.mark.network_full
def test_three_real_processes_with_an_installed_network(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="FLARE is not installed")
    data = write_hospitals(tmp_path / "data")
    federation = Federation(tmp_path, data, model=MODEL, width=None)
    found = federation.run()
    assert found["equal_to_undisturbed"]
