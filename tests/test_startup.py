"""What starts without PyTorch, and without Python's `fcntl`: each case in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

import factorized_fl
from factorized_fl.cli import app

HEAVY = ("torch", "numpy", "sklearn", "pyarrow", "nvflare")
COMMANDS = sorted(command.name for command in app.registered_commands)
GROUPS = sorted(
    f"{group.name} {command.name}"
    for group in app.registered_groups
    for command in group.typer_instance.registered_commands
)
COMMAND = """
from factorized_fl.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


def run_python(code: str, *arguments: str) -> str:
    """Run the code in a new process; returns its output."""
    command = [sys.executable, "-c", f"import sys\n{code}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def heavy_modules(code: str, *arguments: str) -> str:
    """Run the code in a new process; returns the last line of its output: the heavy modules that it imported."""
    return run_python(f"{code}\nprint([m for m in {HEAVY} if m in sys.modules])", *arguments).splitlines()[-1]


@pytest.mark.parametrize(
    "module", ["", ".config", ".core.errors", ".core.files", ".core.options", ".core.seeds", ".presets"]
)
def test_import_loads_nothing_heavy(module: str) -> None:
    assert heavy_modules(f"import factorized_fl{module}") == "[]"


def test_the_check_of_heavy_modules_can_fail() -> None:
    assert heavy_modules("import factorized_fl; factorized_fl.Method") == "['torch', 'numpy']"


@pytest.mark.parametrize("argument", ["--help", "--version", "presets"])
def test_command_loads_nothing_heavy(argument: str) -> None:
    assert heavy_modules(COMMAND, argument) == "[]"


RUN = """
import sys, tempfile, torch
import factorized_fl as ffl
images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8).numpy()
clients = [ffl.ClientData(images, [0, 1, 0, 1], test=(images, [0, 1, 0, 1]), classes=["a", "b"]) for _ in range(2)]
options = dict(model="cnn", width=0.1, rounds=2, batch_size=2, device="cpu")
with tempfile.TemporaryDirectory() as folder:
    ffl.run(clients, folder + "/run", method="factorized-peers", **options)
"""
SLOW = ("scipy", "sklearn", "pyarrow", "jinja2", "pandas", "sympy", "torch._dynamo")


def test_a_run_loads_no_slow_package_besides_torch() -> None:
    """Each takes 0.05 to 0.8 s to load, before the first round or in it."""
    assert run_python(f"{RUN}\nprint([m for m in {SLOW} if m in sys.modules])").splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", [*COMMANDS, *GROUPS])
def test_help_of_a_command_loads_nothing_heavy(command: str) -> None:
    assert heavy_modules(COMMAND, *command.split(), "--help") == "[]"


def test_every_public_name_loads_and_is_listed() -> None:
    for name in factorized_fl.__all__:
        assert getattr(factorized_fl, name).__module__.startswith("factorized_fl.") or name == "Tensors"
    assert set(factorized_fl.__all__) <= set(dir(factorized_fl))
    with pytest.raises(AttributeError, match="module 'factorized_fl' has no attribute 'nonsense'"):
        factorized_fl.nonsense  # noqa: B018


def test_the_stub_for_type_checkers_has_the_same_names() -> None:
    stub = Path(factorized_fl.__file__ or "").with_suffix(".pyi").read_text()
    names: dict[str, list[str]] = {}
    exec(stub[stub.index("__all__") :], names)
    assert names["__all__"] == factorized_fl.__all__


def test_the_function_report_is_not_hidden_by_the_package_report() -> None:
    code = """
import factorized_fl as ffl
import factorized_fl.report.page
from factorized_fl.report import watch
assert callable(ffl.report) and ffl.report.__module__ == "factorized_fl.api", ffl.report
"""
    run_python(code)


WITHOUT_FCNTL = """
import importlib, pkgutil, traceback
sys.modules["fcntl"] = None
import factorized_fl
for module in pkgutil.walk_packages(factorized_fl.__path__, "factorized_fl."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        last = list(traceback.walk_tb(error.__traceback__))[-1][0].f_globals["__name__"]
        print(error.name, last)
"""


def test_the_package_can_be_imported_where_there_is_no_fcntl() -> None:
    """As on Windows. Modules that fail because an optional package is missing are not counted."""
    failures = [line.split() for line in run_python(WITHOUT_FCNTL).splitlines()]
    assert [module for missing, module in failures if missing == "fcntl"] == []


def test_training_does_not_import_sympy(tmp_path: Path) -> None:
    """It takes 0.3 s and 34 MB in each process; PyTorch imports it for one of its own functions."""
    code = """
import numpy as np
import factorized_fl as ffl
x, y = np.zeros((20, 1, 8, 8), np.uint8), np.arange(20) % 2
clients = [ffl.ClientData(x, y, test=(x, y), name=name) for name in ("one", "two")]
ffl.run(clients, model="cnn", method="factorized-fl", rounds=1, epochs=1, device="cpu", out=sys.argv[1])
print([name for name in ("sympy", "pandas", "sklearn") if name in sys.modules])
"""
    assert run_python(code, str(tmp_path / "run")).splitlines()[-1] == "[]"
