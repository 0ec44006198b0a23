"""The agreement, the kits, and mistakes that end in one sentence."""

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from factorized_fl import cli
from factorized_fl.cli import network
from factorized_fl.core.errors import Busy, UserError
from factorized_fl.export.predict import predict
from factorized_fl.methods import METHODS
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo import supervise, transport
from factorized_fl.silo.agreement import Kit, read_agreement, read_kit, write_kit
from factorized_fl.silo.columns import TableColumns
from factorized_fl.silo.kits import make_kits, readme
from factorized_fl.silo.settings import Settings, read_settings, save_settings
from factorized_fl.silo.site_export import export_now
from factorized_fl.silo.status import is_done, status_lines, write_status
from tests.silo.parties import NAMES, kits_of, make_sites, trio_config, write_trio
from tests.silo.test_trust import round_request

SITES = {"name": "trio", "image_size": 8, "channels": 1, "model": "cnn", "rounds": 7}


def write(path: Path, names: tuple[str, ...] = NAMES, **settings: object) -> Path:
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**SITES, **settings}.items() if value is not None]
    path.write_text("\n".join(lines + [f"[[sites]]\nname = {json.dumps(name)}" for name in names]))
    return path


def test_the_agreement(tmp_path: Path) -> None:
    agreement, config = read_agreement(write(tmp_path / "sites.toml", method="fedavg", deadline=5))
    assert (agreement.sites, agreement.needed, agreement.deadline) == (NAMES, 2, 5.0)
    assert (config.clients, config.method, config.rounds, config.dataset) == (3, "fedavg", 7, "folder")
    assert len(agreement.id) == 16
    assert read_agreement(tmp_path / "sites.toml")[0].id != agreement.id  # every federation has its own


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clients": 4}, "sets clients, which follows"),
        *(({name: 1}, f"sets {name}, which follows") for name in ("alpha", "scrambled")),
        *(({name: 1}, f"sets {name}, which follows") for name in ("permutation_seed", "partition_seed")),
        ({"score": "validation"}, "sets score, which follows"),
        ({"quorum": 4}, "can never be met by 3"),
        ({"image_size": None}, "agreed.toml must set image_size: all"),
        ({"channels": None}, "agreed.toml must set channels to 1 or 3: all"),
        ({"image_size": None, "channels": 2}, "agreed.toml must set image_size and channels to 1 or 3: all"),
        ({"dedline": 30}, "Unknown option 'dedline'. Did you mean 'deadline'"),
        ({"method": "fedavgg"}, "Did you mean 'fedavg'"),
        ({"round": 3}, "Unknown option 'round'. Did you mean 'rounds'"),
        ({"address": "https://x:1"}, "host name"),
        ({"port": 0}, "port = 0 must be at least 1"),
        ({"names": ("aster",)}, "two or more"),
        ({"names": ("aster", "aster")}, "each once"),
        ({"names": ("aster", "authority")}, "none of them 'coordinator' or 'authority' or 'server'"),
        ({"names": ("aster", "server")}, "none of them 'coordinator' or 'authority' or 'server'"),
        ({"options": 3}, "options = 3 must be a table"),
        ({"deadline": "soon"}, "must be a number"),
    ],
)
def test_mistakes_in_the_agreement(settings: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_agreement(write(tmp_path / "agreed.toml", **settings))
    assert words in str(caught.value)


def test_a_method_that_is_not_installed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "mine", METHODS["fedavg"])
    with pytest.raises(UserError, match="'mine' is a method of your own: between organisations only installed code"):
        read_agreement(write(tmp_path / "sites.toml", method="mine"))


def test_a_site_with_more_than_a_name_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "sites.toml")
    path.write_text(path.read_text() + '\ncolour = "red"\n')
    with pytest.raises(UserError, match="Unknown key of a site 'colour'"):
        read_agreement(path)


def test_a_kit_says_what_was_agreed(tmp_path: Path) -> None:
    config = trio_config("fedfomo", options={"models": 3})
    kit = kits_of(tmp_path, config)["birch"]
    write_kit(kit)
    again = read_kit(kit.path)
    assert (again.agreement, again.config, again.party, again.seat) == (kit.agreement, config, "birch", 1)
    for party in (COORDINATOR, *NAMES):
        text = readme(party, kit.agreement, config)
        assert party in text
        assert ("ffl serve" in text) == (party == COORDINATOR)
        assert "fingerprint" not in text
        for other in (trio_config("factorized-peers"), trio_config(options={"match": "statistics"})):
            looking = readme(party, kit.agreement, other)
            assert "a fingerprint of the images" in looking
            assert "matching v" not in looking


@pytest.mark.parametrize(
    "change", [{"name": "../outside"}, {"address": 'x", "scheme": "y'}, {"sites": (*NAMES, "a/../../b")}]
)
def test_names_and_addresses_with_special_characters_are_refused(change: dict, tmp_path: Path) -> None:
    """They become folders and parts of FLARE's configuration."""
    kit = kits_of(tmp_path, trio_config())["birch"]
    write_kit(replace(kit, agreement=replace(kit.agreement, **change)))
    with pytest.raises(UserError, match="must be"):
        read_kit(kit.path)


def ffl(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ffl", *map(str, arguments)])
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, capsys.readouterr().err


def test_mistakes_at_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kits = kits_of(tmp_path, trio_config())
    for kit in kits.values():
        write_kit(kit)
    for arguments, words in (
        (["serve", tmp_path], "is not a kit"),
        (["serve", tmp_path / "aster"], "use `ffl join`"),
        (["join", tmp_path / COORDINATOR], "use `ffl serve`"),
        (["join", tmp_path / "aster"], "--data DIR"),
        (["join", tmp_path / "aster", "--data", tmp_path / "nowhere"], "no folder or parquet"),
        (["federation", "readmit", tmp_path / COORDINATOR, "nobody"], "only one of aster, birch, cedar"),
        (["federation", "new", write(tmp_path / "s.toml"), "--out", tmp_path / "aster"], "is there already"),
        (["export", tmp_path / "aster"], "--data DIR"),
        (["export", tmp_path / COORDINATOR], "which has no model"),
        (["export", tmp_path / "aster", "--client", 2], "leave --client out"),
    ):
        code, err = ffl(capsys, *arguments)
        assert code == 2, err
        assert words in err.replace("\n", " ")
        assert "Traceback" not in err


def test_a_model_at_any_time(tmp_path: Path) -> None:
    data = write_trio(tmp_path / "data")
    kits = kits_of(tmp_path / "kits", trio_config())
    site = make_sites(kits, data)["cedar"]
    with pytest.raises(UserError, match="has trained no round"):
        export_now(kits["cedar"], data / "cedar")
    site.answer(round_request(1))
    before = {path: path.read_bytes() for path in kits["cedar"].run.rglob("*") if path.is_file()}
    exported = export_now(kits["cedar"], data / "cedar")
    assert exported.accuracy == site.directory.metrics()[0]["accuracy"]
    assert predict(kits["cedar"].model, [data / "cedar" / "column-1"])[0].classes[0][0].startswith("column-")
    assert before == {path: path.read_bytes() for path in kits["cedar"].run.rglob("*") if path.is_file()}


def test_a_site_that_took_part_in_no_round_gets_its_stand_alone_model(tmp_path: Path) -> None:
    """It must not get an untrained network with a verdict."""
    data = write_trio(tmp_path / "data")
    kits = kits_of(tmp_path / "kits", trio_config())
    said: list[str] = []
    site = make_sites(kits, data, said.append)["aster"]
    assert site.finish(alone=False) is None
    assert not kits["aster"].model.exists()
    assert said == ["took part in no round and trained none alone: there is no model"]
    exported = site.finish(alone=True)
    assert exported is not None
    assert exported.verdict is None
    assert exported.accuracy == RunDirectory(kits["aster"].alone).summary()["accuracy_mean"]
    card = (kits["aster"].model / "README.md").read_text()
    assert "without other participants, as a control, " in card
    assert "with 1\nparticipant, on" in card
    assert "took part in no round: the model is the one that was trained alone" in said


def test_other_data_are_refused_by_export_and_join(tmp_path: Path) -> None:
    """Another class name would swap labels silently, another image would change the test split."""
    data = write_trio(tmp_path / "data")
    kits = kits_of(tmp_path / "kits", trio_config())
    choose = partial(choose_and_save, kits["cedar"], data / "cedar", None, None, None)
    (data / "cedar" / "column-0").rename(data / "cedar" / "other")
    choose()
    make_sites(kits, data)
    choose()
    (data / "cedar" / "other").rename(data / "cedar" / "column-0")  # before a round is trained it may still change
    choose()
    make_sites(kits, data)["cedar"].answer(round_request(1))
    (data / "cedar" / "column-0").rename(data / "cedar" / "other")
    for begin in (lambda: export_now(kits["cedar"], data / "cedar"), lambda: make_sites(kits, data), choose):
        with pytest.raises(UserError, match=r"started with other data \(of cedar, classes was .*'column-0'.*now"):
            begin()
    (data / "cedar" / "other").rename(data / "cedar" / "column-0")
    shutil.copy(data / "cedar" / "column-1" / "0001.png", data / "cedar" / "column-1" / "more.png")
    with pytest.raises(UserError, match=r"of cedar, validation was 12, now 13"):
        make_sites(kits, data)
    (data / "cedar" / "column-1" / "more.png").unlink()
    (data / "cedar" / "column-1" / "0001.png").rename(data / "cedar" / "column-2" / "0001.png")
    with pytest.raises(UserError, match="of cedar, the split is different"):
        make_sites(kits, data)


def test_an_unreadable_checkpoint_gives_a_warning(tmp_path: Path) -> None:
    data = write_trio(tmp_path / "data")
    kits = kits_of(tmp_path / "kits", trio_config())
    site = make_sites(kits, data)["cedar"]
    for round_number in (1, 2):
        site.answer(round_request(round_number))
    site.directory.checkpoint_path.write_bytes(b"torn")
    with pytest.warns(UserWarning, match="trying the round before"):
        exported = export_now(kits["cedar"], data / "cedar")
    assert exported.accuracy == site.directory.metrics()[0]["accuracy"]
    (kits["cedar"].run / "previous.safetensors").write_bytes(b"torn")
    with (
        pytest.warns(UserWarning, match="checkpoint.safetensors is damaged"),
        pytest.warns(UserWarning, match="previous.safetensors is damaged"),
        pytest.raises(UserError, match="its checkpoints are damaged"),
    ):
        export_now(kits["cedar"], data / "cedar")


def choose_and_save(kit: Kit, *choices: Any) -> None:
    """The part of `ffl join` before the check of certificates, which these kits lack."""
    write_kit(kit)
    save_settings(kit, network.site_choices(kit, *choices, check=network.check_data))


def die(kit: Path, data: Path, device: str, columns: TableColumns) -> None:
    """What the system does to a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_check_of_data_that_is_killed_gives_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(network, "check_data", die)
    with pytest.raises(UserError, match=r"The process that read '.*' was killed; perhaps there is too little memory"):
        network.check_data_in_child(tmp_path, tmp_path / "data", "cpu", TableColumns())


def warn(kit: Path, data: Path, device: str, columns: TableColumns) -> None:
    """What reading a folder with unreadable images does."""
    warnings.warn("Left out 2 unreadable images.", stacklevel=1)


def test_a_check_of_data_prints_warnings_as_notes(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(network, "check_data", warn)
    network.check_data_in_child(tmp_path, tmp_path / "data", "cpu", TableColumns())
    assert capfd.readouterr().err == "Note: Left out 2 unreadable images.\n"


def test_a_running_site_keeps_its_choices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Otherwise its trainer would use the refused choices when it is restarted."""
    pytest.importorskip("nvflare", reason="FLARE is not installed")
    data = write_trio(tmp_path / "data")
    make_kits(write(tmp_path / "sites.toml"), tmp_path / "kits")
    kit = read_kit(tmp_path / "kits" / "aster")
    save_settings(kit, Settings(data / "aster"))
    before = (kit.path / "site.toml").read_bytes()
    arguments = ["join", kit.path, "--data", data / "birch", "--report-accuracy"]
    with supervise.exclusive_use(kit):
        code, err = ffl(capsys, *arguments)
        assert (code, "aster runs already" in err) == (2, True)
        with pytest.raises(Busy, match="aster runs already"):  # as if it started after the first check
            supervise.exclusive_use(kit).__enter__()
    transport.network().credentials(kit).key.unlink()
    code, err = ffl(capsys, *arguments)
    assert (code, "has lost" in err) == (2, True)
    assert (kit.path / "site.toml").read_bytes() == before


def test_joining_again_keeps_the_sites_choices(tmp_path: Path) -> None:
    data = write_trio(tmp_path / "data")
    kit = kits_of(tmp_path / "kits", trio_config())["aster"]
    choose = partial(choose_and_save, kit)
    choose(data / "aster", None, None, None)
    assert read_settings(kit) == Settings(data / "aster", "cpu", report=False, alone=True)
    choose(data / "aster", True, False, "cpu")
    choose(None, None, None, None)
    assert read_settings(kit) == Settings(data / "aster", "cpu", report=True, alone=False)
    choose(None, False, None, None)
    assert read_settings(kit) == Settings(data / "aster", "cpu", report=False, alone=False)
    (kit.path / "site.toml").write_text('data = "x"\ndevice = 3\n')
    with pytest.raises(UserError, match="no valid 'device'"):
        read_settings(kit)


def test_a_site_is_reminded_of_a_report_it_did_not_ask_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The maker of the kit may have left choices in it."""
    data = write_trio(tmp_path / "data")
    kit = kits_of(tmp_path / "kits", trio_config())["aster"]
    choose = partial(choose_and_save, kit, data / "aster")
    words = "aster reports its accuracies, as site.toml in its kit says: --keep-accuracy keeps them here"
    said = []
    save_settings(kit, Settings(data / "elsewhere", report=True))
    for choice in (None, True, False, None):
        choose(choice, None, None)
        said.append(words in " ".join(capsys.readouterr().out.split()))
    assert said == [True, False, False, False]


def test_a_site_that_is_done_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kits = kits_of(tmp_path, trio_config())
    kit = kits["aster"]
    write_kit(kit)
    write_status(kit, "done")
    assert not is_done(kit)  # somebody took its model away
    kit.model.mkdir()
    assert ffl(capsys, "join", kit.path) == (0, "")
    kit.status.write_text("{}")
    assert ffl(capsys, "federation", "status", kit.path) == (0, "")
    assert status_lines(kit) == ["aster of trio: starting."]
    assert status_lines(kit, runs=False) == ["aster of trio: never started."]
    write_status(kit, "at work")
    assert status_lines(kit) == ["aster of trio: at work"]
    assert status_lines(kit, runs=False) == ["aster of trio: at work, 0 s ago: it does not run"]


@pytest.mark.parametrize("folder", ["my images", 'a "name"', "Bilder \u00e4", "\U0001f600", "a\x7fb"])
def test_a_sites_choices_are_stored_in_its_kit(folder: str, tmp_path: Path) -> None:
    kit = kits_of(tmp_path, trio_config())["aster"]
    chosen = Settings(tmp_path / folder, "cpu", report=True, alone=False)
    save_settings(kit, chosen)
    assert read_settings(kit) == chosen


def test_a_path_that_is_no_text_is_refused(tmp_path: Path) -> None:
    kit = kits_of(tmp_path, trio_config())["aster"]
    with pytest.raises(UserError, match="is not valid text: rename the folder"):
        save_settings(kit, Settings(tmp_path / "a\udcffb"))


def test_guide_and_readme_say_how_flare_is_installed() -> None:
    root = Path(__file__).parents[2]
    beginning, _, _ = (root / "docs" / "federate.md").read_text().partition("## 1.")
    _, _, section = (root / "README.md").read_text().partition("## Between organisations")
    for words in (beginning, section.partition("\n## ")[0]):
        assert 'pip install -e ".[network]"' in words


def test_without_flare_there_is_one_line_and_everything_else_works(tmp_path: Path) -> None:
    """In a process that cannot import FLARE and ONNX."""
    code = f"""
import sys
for name in ("nvflare", "onnx", "onnxruntime", "onnxscript", "psutil"):
    sys.modules[name] = None
import factorized_fl.cli
from factorized_fl.core.errors import Busy, UserError
from factorized_fl.methods import METHODS
from factorized_fl.silo.kits import make_kits
from pathlib import Path
try:
    make_kits(Path({str(write(tmp_path / "sites.toml"))!r}), Path({str(tmp_path / "kits")!r}))
except UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == 'Federations between organisations need FLARE: pip install "factorized-fl[network]".'
    assert not (tmp_path / "kits").exists()


def test_kits_differ_and_the_largest_message_fits_a_model(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="FLARE is not installed")
    agreement = make_kits(write(tmp_path / "sites.toml"), tmp_path / "kits")
    kits = [read_kit(tmp_path / "kits" / party) for party in (COORDINATOR, *NAMES)]
    assert {kit.agreement.id for kit in kits} == {agreement.id}
    assert len({path.read_text() for path in (tmp_path / "kits").rglob("*.key")}) == 4
    site = make_sites(kits_of(tmp_path / "p", kits[1].config), write_trio(tmp_path / "data"))["aster"]
    numbers = sum(
        tensor.numel() for tensor in site.federation.clients.state.client(0).values() if tensor.dtype == torch.float32
    )
    assert 4 * numbers < agreement.largest < 4 * numbers + 300_000


def test_the_guides_seconds_are_those_of_the_results_file() -> None:
    root = Path(__file__).parents[2]
    guide = (root / "docs" / "federate.md").read_text().replace("\n", " ")
    small, large, _ = json.loads((root / "results" / "network" / "overhead.json").read_text()).values()
    assert f"took {small['seconds_per_round_not_training']['mean']:.2f} s besides training" in guide
    assert f"{small['bytes_up_per_site_and_round'] / 1e3:.0f} kB went up" in guide
    assert f"{large['seconds_per_round_not_training']['mean']:.2f} s where" in guide
    assert f"{large['bytes_up_per_site_and_round'] / 1e6:.1f} MB did" in guide


def test_the_guides_seconds_over_a_long_line_are_those_of_the_results_file() -> None:
    root = Path(__file__).parents[2]
    guide = (root / "docs" / "federate.md").read_text().replace("\n", " ")
    found = json.loads((root / "results" / "network" / "wan.json").read_text())
    clean, lossy = (
        [found[f"{size}, 200 ms, {loss}"]["seconds_per_round_not_training"]["median"] for size in ("10 kB", "2.8 MB")]
        for loss in ("no loss", "5% loss")
    )
    assert f"was {clean[0]:.2f} s besides training for 10 kB and {clean[1]:.1f} s for 2.8 MB" in guide
    assert f"lost as well, {lossy[0]:.2f} s and {lossy[1]:.1f} s" in guide


def test_the_guides_numbers_of_many_sites_are_those_of_the_results_file() -> None:
    root = Path(__file__).parents[2]
    guide = (root / "docs" / "federate.md").read_text().replace("\n", " ")
    found = json.loads((root / "results" / "network" / "scale.json").read_text())
    most = max((case for case in found["cases"] if case["complete"]), key=lambda case: case["sites"])
    assert most["sites_in_each_round"] == [most["sites"]] * most["rounds"]
    assert f"{most['sites']} sites took part in all rounds" in guide
    assert f"{most['bytes_up_per_site_and_round'] / 1e3:.0f} kB from each site" in guide
    assert f"connected after {most['seconds_until_all_are_connected']:.0f} s" in guide
    assert f"a round took {sorted(most['seconds_of_each_round'])[1]:.0f} s" in guide
    assert f"processes added {most['own_memory_of_the_coordinator_mb']:.0f} MB" in guide
    own = most["own_memory_of_a_sites_trainer_mb"] + most["own_memory_of_a_sites_agent_mb"]
    assert f"each site added {own:.0f} MB" in guide
    joined = sum(found["own_memory_of_a_site_of_ffl_join_mb"].values())
    assert f"starts adds {joined:.0f} MB" in guide
    room = most["available_memory_at_least_gb"] * 1e3 + most["sites"] * own
    assert f"about {round(room / joined, -1):.0f} of them" in guide


def test_names_with_dashes_make_kits(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="FLARE is not installed")
    make_kits(write(tmp_path / "sites.toml", ("st-mary", "lab-2-b"), name="two-labs"), tmp_path / "kits")
    assert (tmp_path / "kits" / "st-mary" / "flare" / "startup" / "client.key").is_file()
