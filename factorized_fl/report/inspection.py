"""What a first look at a party's data found, for a person."""

from rich.table import Table

from factorized_fl.data.local_images import SPLITS, Inspection


def inspection_line(found: Inspection) -> str:
    """How many images, of which sizes and colours."""
    sizes = [f"{width}x{height}" for (width, height), _ in found.sizes.most_common(3)]
    others = f" and {len(found.sizes) - 3} other sizes" if len(found.sizes) > 3 else ""
    unreadable = len(found.unreadable) + len(found.no_white)
    return (
        f"{found.total:,} images in {len(found.classes)} classes, {', '.join(sizes)}{others}; "
        f"{found.grey:,} grey, {found.total - found.grey:,} colour; {unreadable} unreadable"
    )


def inspection_table(found: Inspection) -> Table:
    """Images by class and split."""
    splits = [split for split in ("", *SPLITS) if split in found.counts]
    table = Table()
    table.add_column("class")
    for split in splits:
        table.add_column(split or "images", justify="right")
    for name in found.classes:
        table.add_row(name, *(f"{found.counts[split][name]:,}" for split in splits))
    return table
