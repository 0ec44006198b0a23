"""The columns of a site's table. Without PyTorch: a supervisor stores them and does not read the table."""

from dataclasses import dataclass, replace

from factorized_fl.core.options import check, option


@dataclass(frozen=True)
class TableColumns:
    """The names of the columns of a site's table; empty where the table has none, or the site has a folder."""

    label: str = option("", "column of labels; empty: label")
    image: str = option("", "column of images: paths relative to the table, or the bytes of image files")
    features: tuple[str, ...] = option((), "columns of numbers, or one column of arrays")
    split: str = option("", "column with the words train, validation and test")
    group: str = option("", "column of patients or other groups, never divided between training, validation and test")
    subgroups: tuple[str, ...] = option((), "columns by which the metrics of the model are divided")
    window: str = option("", "LEVEL/WIDTH of grey values in pictures with more than 8 bits; also of a folder")

    def __post_init__(self) -> None:
        check(self)

    @property
    def given(self) -> bool:
        """True if any column is named."""
        return replace(self, window="") != TableColumns()
