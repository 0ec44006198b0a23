"""Errors name arguments in Python and flags on the command line; whole commands stay as they are."""

from factorized_fl.core.errors import UserError, flags_shown


def test_flags_become_arguments_and_commands_stay() -> None:
    error = UserError("Give the folder with --data DIR, or add --resume; `ffl --load FILE.py methods` lists all.")
    assert str(error) == "Give the folder with data=, or add resume=True; `ffl --load FILE.py methods` lists all."
    with flags_shown():
        assert "--data DIR, or add --resume" in str(error)
