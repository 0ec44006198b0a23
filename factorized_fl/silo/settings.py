"""The choices that a site makes for itself and does not share: its data, its device, its reports."""

from dataclasses import asdict, dataclass
from dataclasses import field as dataclass_field
from pathlib import Path

import tomli_w

from factorized_fl.config import as_table, read_table
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.core.options import make
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.clinical import check_shared
from factorized_fl.silo.columns import TableColumns

_FILE = "site.toml"
_FORMS = {
    "data": (str, 'as in data = "/path/to/images"'),
    "device": (str, 'as in device = "cpu"'),
    "report": (bool, "true or false"),
    "alone": (bool, "true or false"),
    "limit": (float, "a number of megabits per second of at least 0, as in limit = 2.5"),
}
_LATER = {"limit": 0.0}  # choices that files of earlier versions lack


@dataclass(frozen=True)
class Settings:
    """A site's own choices."""

    data: Path
    device: str = "cpu"
    report: bool = False  # send this site's accuracies to the coordinator
    alone: bool = True  # train the control at the end: the same method without the other sites
    limit: float = 0.0  # megabits per second that messages may use each way, 0: no limit
    columns: TableColumns = dataclass_field(default_factory=TableColumns)  # columns of the data, if they are a table
    metrics: tuple[str, ...] = ()  # clinical metrics that the coordinator may see after the last round


def save_settings(kit: Kit, settings: Settings) -> None:
    """Write the choices to the site's kit."""
    values = {**asdict(settings), "data": str(settings.data.resolve())}
    try:
        content = tomli_w.dumps(values).encode()
    except UnicodeEncodeError:  # a file name may hold bytes that are no characters
        raise UserError(f"The path {values['data']!a} is not valid text: rename the folder.") from None
    write_atomically(kit.path / _FILE, content)


def has_settings(kit: Kit) -> bool:
    """True if the site has joined before."""
    return (kit.path / _FILE).exists()


def read_settings(kit: Kit) -> Settings:
    """The choices from the last time the site joined; raises UserError if there are none or one is invalid."""
    if not has_settings(kit):
        raise UserError(f"'{kit.path}' does not know its data yet: ffl join {kit.path} --data DIR.")
    table = _LATER | read_table(kit.path / _FILE)
    for name, (kind, form) in _FORMS.items():
        if kind is float and isinstance(table.get(name), int) and not isinstance(table[name], bool):
            table[name] = float(table[name])
        if not isinstance(table.get(name), kind) or (kind is float and not 0 <= table[name] < float("inf")):
            raise UserError(f"'{kit.path / _FILE}' has no valid '{name}', {form}: correct it.")
    columns = make(TableColumns, as_table(table.get("columns", {}), "columns"), f"column in '{kit.path / _FILE}'")
    metrics = table.get("metrics", [])
    if not isinstance(metrics, list) or not all(isinstance(name, str) for name in metrics):
        raise UserError(f"'{kit.path / _FILE}' has no valid 'metrics', as in metrics = [\"auroc\"]: correct it.")
    choices = {name: table[name] for name in ("device", "report", "alone", "limit")}
    return Settings(Path(table["data"]), **choices, columns=columns, metrics=check_shared(metrics))


def chosen_data(kit: Kit, data: Path | None = None) -> tuple[Path, TableColumns]:
    """The site's data and their columns: `data` in the place of those of its last join, if given."""
    if data is not None and not has_settings(kit):
        return data, TableColumns()
    settings = read_settings(kit)
    return data or settings.data, settings.columns


def site_limit(kit: Kit) -> float:
    """The limit of bandwidth in megabits per second that the site chose, 0 if it chose none."""
    return read_settings(kit).limit if has_settings(kit) else 0.0
