"""The inspection of a party's data as text and as a table."""

from rich.table import Table

from factorized_fl.data.local_images import SPLITS, Inspection
from factorized_fl.results.schema import Record


def inspection_line(found: Inspection) -> str:
    """Return the numbers, sizes and colours of the images in one line."""
    sizes = [f"{width}x{height}" for (width, height), _ in found.sizes.most_common(3)]
    others = f" and {len(found.sizes) - 3} other sizes" if len(found.sizes) > 3 else ""
    unreadable = len(found.unreadable) + len(found.no_white)
    return (
        f"{found.total:,} images in {len(found.classes)} classes, {', '.join(sizes)}{others}; "
        f"{found.grey:,} grey, {found.total - found.grey:,} colour; {unreadable} unreadable"
    )


def inspection_table(found: Inspection) -> Table:
    """Return the numbers of images by class and split."""
    splits = [split for split in ("", *SPLITS) if split in found.counts]
    table = Table()
    table.add_column("class", overflow="fold")
    for split in splits:
        table.add_column(split or "images", justify="right")
    for name in found.classes:
        table.add_row(name, *(f"{found.counts[split][name]:,}" for split in splits))
    return table


def inspection_document(found: Inspection) -> Record:
    """Return the findings for a program; images outside of splits are counted under "images"."""
    return {
        "images": found.total,
        "classes": found.classes,
        "counts": {split or "images": dict(counts) for split, counts in found.counts.items()},
        "sizes": [{"width": w, "height": h, "images": count} for (w, h), count in found.sizes.most_common()],
        "grey": found.grey,
        "colour": found.total - found.grey,
        "unreadable": [where for _, where in found.unreadable] + list(found.no_white),
        "warnings": found.complaints(),
    }
