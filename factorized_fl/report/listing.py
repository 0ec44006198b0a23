"""Lists and tables that never cut a name: on a narrow terminal text wraps, and a table continues in a second one."""

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

_GAP = 2


class DescribedNames:
    """A list of names, each with its description beside it; descriptions wrap, names do not, no line is padded."""

    def __init__(self, entries: Iterable[tuple[str, str]]) -> None:
        self.entries = list(entries)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the lines; below the name where less than a third of the width is left beside the names."""
        indent = _GAP + max((cell_len(name) for name, _ in self.entries), default=0)
        below = 3 * (options.max_width - indent) < options.max_width
        indent = 2 * _GAP if below else indent
        for name, description in self.entries:
            lines = Text(description).wrap(console, max(options.max_width - indent, 1))
            for line in lines:
                line.rstrip()
            head = Text(name, style="bold")
            if lines and not below:
                head = Text.assemble(head, " " * (indent - cell_len(name)), lines.pop(0))
            yield head
            yield from (Text.assemble(" " * indent, line) for line in lines)


class NamedTable:
    """A table whose first column has names. Columns that do not fit follow below, beside the names once more."""

    def __init__(self, headings: Sequence[str], title: str = "", caption: str = "", left: Sequence[str] = ()) -> None:
        self.headings, self.title, self.caption, self.left = headings, title, caption, left
        self.rows: list[list[Text]] = []

    def add_row(self, *cells: str | Text) -> None:
        """Add a row: a name, then one cell for each further heading."""
        self.rows.append([cell if isinstance(cell, Text) else Text(cell) for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield one table for each group of columns that fits into the width."""
        if self.title:
            yield Text(self.title, style="italic")
        names = self._needed(0)
        group: list[int] = []
        used = names
        for column in range(1, len(self.headings)):
            needed = _GAP + self._needed(column)
            if group and used + needed > options.max_width:
                yield self._table(group, options.max_width)
                yield Text()
                group, used = [], names
            group.append(column)
            used += needed
        yield self._table(group, options.max_width)
        if self.caption:
            yield Text(self.caption, style="dim italic")

    def _needed(self, column: int) -> int:
        """Return the width of a column whose heading wraps between words."""
        words = self.headings[column].split() or [""]
        return max(map(cell_len, [*words, *(row[column].plain for row in self.rows)]))

    def _table(self, columns: Sequence[int], width: int) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        shown = [0, *columns]
        whole = [max(self._needed(column), cell_len(self.headings[column])) for column in shown]
        fits = sum(whole) + _GAP * len(columns) <= width
        for column, full in zip(shown, whole, strict=True):
            heading = self.headings[column]
            name = column == 0
            justify = "left" if name or heading in self.left else "right"
            needed = full if fits else self._needed(column)  # cells of an even narrower table are folded
            table.add_column(heading, justify=justify, width=needed, overflow="fold")  # type: ignore[arg-type]
        for row in self.rows:
            table.add_row(*(row[column] for column in shown))
        return table
