"""Errors in a file with a user's method name the error and its line."""

from pathlib import Path

import pytest

from factorized_fl.core.errors import UserError
from factorized_fl.methods.loading import load_methods


@pytest.mark.parametrize("given", ["one.py", "./one.py", "../here/one.py", "{folder}/one.py"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import math\n\n1 / 0\n", r"ZeroDivisionError: division by zero, line 3\)"),
        ("def f():\n    raise ValueError('no')\n\nf()\n", r"ValueError: no, line 2\)"),
        ("import math\n)\n", r"SyntaxError: unmatched '\)' \(one.py, line 2\)"),
    ],
)
def test_the_line_of_an_error_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, text: str, words: str
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "one.py").write_text(text)
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=words):
        load_methods(Path(given.format(folder=folder)))
