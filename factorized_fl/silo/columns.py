"""The columns of a site's table. Without PyTorch: a supervisor stores them and does not read the table."""

from dataclasses import dataclass

from factorized_fl.core.options import check, option


@dataclass(frozen=True)
class TableColumns:
    """The names of the columns of a site's table; empty where the table has none, or the site has a folder."""

    label: str = option("", "column of labels; empty: label")
    image: str = option("", "column of images: paths relative to the table, or the bytes of image files")
    features: tuple[str, ...] = option((), "columns of numbers, or one column of arrays")
    split: str = option("", "column with the words train, validation and test")

    def __post_init__(self) -> None:
        check(self)

    @property
    def given(self) -> bool:
        """True if any column is named."""
        return self != TableColumns()
