"""Values as TOML text on one line, and settings as text."""

import json
import tomllib
from typing import Any

from factorized_fl.core.errors import UserError


def to_toml_value(value: Any) -> str:
    """A value as TOML on one line, as in ``--set key=value``; tomli_w breaks lists over several lines."""
    # JSON is TOML for all values of options, if every character except DEL is written as it is.
    text = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")


def parse_setting(text: str) -> tuple[str, Any]:
    """The name and the value of ``key=value``; the value is parsed as TOML, and is a string if it is not TOML."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise UserError(f"'{text}' is not a setting: write key=value, for example rounds=10.")
    if "\n" in value:
        raise UserError(f"{text!r} has more than one line: give each setting its own --set.")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()
