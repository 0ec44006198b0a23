"""Where a result came from: versions, machine, commit."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import factorized_fl


def describe_environment(seed: int, device: str) -> dict[str, Any]:
    """All that somebody else would need to know to get the same numbers."""
    packages: dict[str, str | None] = {"torch": torch.__version__}  # names the build, which its package need not
    for package in ("numpy", "pyarrow", "pillow", "safetensors", "scikit-learn"):
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            packages[package] = None
    return {
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
    """What results call a device: a GPU by its model, a CPU by its kind."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()


def _commit() -> str | None:
    """The commit of the source tree, marked when it has changes; nothing for an installed package.

    A copy of the tree that travels without its history can be told by $FFL_COMMIT.
    """
    if told := os.environ.get("FFL_COMMIT"):
        return told
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
