"""What rows are called when people read them."""

from factorized_fl.methods import METHODS
from factorized_fl.reproduce.departures import DRAWS, RELEASED

_VARIANTS = {
    RELEASED: "all departures",
    "no-l1": "no gradient of L1",
    "peers": "released tau and fewest peers",
    "released-layout": "released layout",
    "head-reset": "classifier reset each round",
    "head-shared": "but the classifier shared",
    "epsilon=1": "epsilon 1",
    "head-mu": "Xavier mu in the classifier",
    "sequential": "mixed in place",
    "tf32": "TF32 convolutions",
    "fp32": "float32 convolutions",
    "three-best": "three most similar",
    "alone": "each client alone",
    "keep-current": "current model kept",
    "lr=0.005": "learning rate 0.005",
    "steps=0.005": "steps of 0.005, inner ones too",
    "lr=0.01": "learning rate 0.01",
    "dense-head": "its classifier dense",
    "twice": "trained twice a round",
    "by-images": "clients count by their images",
    **{name: f"shares drawn with seed {change['partition_seed']}" for name, change in DRAWS},
    "width=64": "64 units between FC layers",
    "width=1024": "1024 units between FC layers",
    "adapted": "inner steps of 0.01, tested after one",
    "settled": "statistics settled",
    "not-settled": "statistics not settled",
    "try-validation": "tried on validation images",
}


def title(row: str) -> str:
    """A row's name: the method's title and, in brackets, what is different about it."""
    method, _, variant = row.partition("+")
    name = METHODS[method].card.title if method in METHODS else method
    return f"{name} ({variant_title(row)})" if variant else name


def variant_title(row: str) -> str:
    """Only what is different."""
    changes = row.partition("+")[2].replace(",", "+").split("+")
    return ", ".join(_VARIANTS.get(change, change) for change in changes)
