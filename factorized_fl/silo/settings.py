"""What a site decides for itself and nobody else learns: where its data is, on what it trains, what it reports."""

from dataclasses import asdict, dataclass
from pathlib import Path

from factorized_fl.config import read_table, to_toml_value
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.silo.plan import Kit

_FILE = "site.toml"
_FORMS = {
    "data": 'as in data = "/path/to/images"',
    "device": 'as in device = "cpu"',
    "report": "true or false",
    "alone": "true or false",
}


@dataclass(frozen=True)
class Settings:
    """A site's own choices."""

    data: Path
    device: str = "cpu"
    report: bool = False  # tell the coordinator this site's accuracies
    alone: bool = True  # train a Stand-Alone model at the end, to compare with


def save_settings(kit: Kit, settings: Settings) -> None:
    """Keep them in the site's kit."""
    values = {**asdict(settings), "data": str(settings.data.resolve())}
    text = "".join(f"{name} = {to_toml_value(value)}\n" for name, value in values.items())
    try:
        content = text.encode()
    except UnicodeEncodeError:  # bytes of a file name that are no characters
        raise UserError(f"The path {values['data']!a} is no text: rename the folder.") from None
    write_atomically(kit.path / _FILE, content)


def has_settings(kit: Kit) -> bool:
    """Whether the site ever joined."""
    return (kit.path / _FILE).exists()


def read_settings(kit: Kit) -> Settings:
    """What was chosen when the site joined."""
    if not has_settings(kit):
        raise UserError(f"'{kit.path}' does not know its data yet: ffl join {kit.path} --data DIR.")
    table = read_table(kit.path / _FILE)
    kinds = {"data": str, "device": str, "report": bool, "alone": bool}
    for name, kind in kinds.items():
        if not isinstance(table.get(name), kind):
            raise UserError(f"'{kit.path / _FILE}' has no valid '{name}', {_FORMS[name]}: correct it.")
    return Settings(Path(table["data"]), table["device"], table["report"], table["alone"])
