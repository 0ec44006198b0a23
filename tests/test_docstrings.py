"""The public functions document every argument, what they return, and what they raise."""

import inspect
import re

import pytest

import factorized_fl as ffl

FUNCTIONS = [name for name in ffl.__all__ if inspect.isfunction(getattr(ffl, name))]
NEVER_RAISE = {"fold", "weighted_mean"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_documents_its_arguments_and_result(name: str) -> None:
    text = inspect.getdoc(getattr(ffl, name)) or ""
    arguments = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
    documented = re.findall(r"^    (\w+): ", arguments, re.MULTILINE)
    assert documented == list(inspect.signature(getattr(ffl, name)).parameters)
    assert "\nReturns:\n" in text
    assert ("\nRaises:\n    UserError: " in text) == (name not in NEVER_RAISE)
    assert text.splitlines()[0].endswith(".")


def test_there_are_functions_to_check() -> None:
    assert {"run", "compare", "sweep", "factorize", "audit"} <= set(FUNCTIONS)
