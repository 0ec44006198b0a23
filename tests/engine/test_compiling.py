"""Every Triton kernel compiled for an H200: the interpreter of the other tests is less strict than the compiler."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

if (
    importlib.util.find_spec("triton") is None
):  # not imported here, because the interpreter is selected before the import
    pytest.skip("Triton is not installed (PyTorch's CUDA builds bring it)", allow_module_level=True)

MOST_SHARED = 227 * 1024  # bytes available to a program
MOST_STACK = 256  # bytes: a kernel with more waits for registers that were spilled


def test_kernels_compile_for_an_h200_and_fit(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.compiling"],
        cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert last == "not launched: "
    for line in lines:
        *_, stack, shared = line.split()
        assert int(stack) <= MOST_STACK, line
        assert int(shared) <= MOST_SHARED, line
