"""The README's short table, from the results alone."""

from factorized_fl.reproduce.beyond import OWN, ROWS, SETTLED
from factorized_fl.reproduce.collection import Collection
from factorized_fl.reproduce.departures import AUTHORS, NEARER, RELEASED
from factorized_fl.reproduce.markdown import entry, table
from factorized_fl.reproduce.names import title
from factorized_fl.reproduce.published import AVERAGE
from factorized_fl.reproduce.rows import rows_of

PLACES = ("domains", "permuted-iid", "permuted-non-iid")
BEGIN, END = "<!-- reproduction: written by `ffl reproduce --show` -->", "<!-- end of reproduction -->"


def short_table(found: Collection) -> str:
    """The README's table: domains and permuted CIFAR-10."""
    domains = {row.method: row for row in rows_of("domains", found) if row.setting == AVERAGE}
    labels = {(row.method, row.setting): row for row in rows_of("label-cifar10", found)}
    departed = {(row.method, row.setting): row for row in rows_of("departures", found)}
    beyond = {(row.method, row.setting): row for row in rows_of("beyond", found)}
    lines = [[title(m), entry(row), *(entry(labels[m, place]) for place in PLACES[1:])] for m, row in domains.items()]
    for row in (*(f"{method}+{RELEASED}" for method in AUTHORS), *(f"{m}+{variant}" for m, variant in NEARER.items())):
        lines.append([title(row), *(entry(departed[row, place]) for place in PLACES)])
    for name in (*ROWS, *SETTLED):
        places = [beyond.get((name, place)) for place in PLACES]
        if name == OWN or any(row and row.seeds for row in places):
            words = f"**{title(name)}**" if name in ROWS else title(name)
            lines.append([words, *(entry(row) if row else "-" for row in places)])
    heads = ("paper / ours, %", "five domains", "permuted IID CIFAR-10", "permuted non-IID CIFAR-10")
    note = (
        "*All departures* are those of the authors' code from their paper ([which](docs/methods.md)); two baselines\n"
        "are there once more with a choice that comes nearer to the published numbers. Our own method settles\n"
        "statistics; others do where it says so. ± is the standard deviation between seeds, of which there are few;\n"
        "an entry without it is of one seed. Two runs of one seed can end more than a point apart\n"
        "([why](docs/performance.md#right))."
    )
    return f"{table(heads, lines)}\n\n{note}"


def with_short_table(readme: str, found: Collection) -> str:
    """The README with its table renewed between the markers; as it is if it has none."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{BEGIN}\n{short_table(found)}\n{END}{after}" if begin and end else readme
