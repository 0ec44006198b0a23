"""The origin of a result: versions, machine, commit."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import factorized_fl


def describe_environment(seed: int, device: str) -> dict[str, Any]:
    """Return the versions, the machine and the commit that a result depends on."""
    packages: dict[str, str | None] = {"torch": torch.__version__}  # with the build
    for package in ("numpy", "pyarrow", "pillow", "safetensors", "scikit-learn"):
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            packages[package] = None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "factorized_fl": factorized_fl.__version__,
        "commit": _commit(),
        "seed": seed,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "packages": packages,
    }


def device_name(device: str) -> str:
    """Return the name of a device in results: the model of a GPU, the architecture of a CPU."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()


def _commit() -> str | None:
    """Return the commit of the source tree, marked if it has changes; None for an installed package."""
    if named := os.environ.get("FFL_COMMIT"):  # of a copy of the tree without history
        return named
    try:
        shown = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return shown.stdout.strip() or None
