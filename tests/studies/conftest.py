"""A small paper to reproduce: two domains of little pictures, a handful of cells that take a second each."""

import pytest

from factorized_fl import presets
from studies.paper import grid
from studies.paper.cells import Cell
from studies.paper.grid import Study
from tests.tiny import TABLE


@pytest.fixture
def tiny_studies(monkeypatch: pytest.MonkeyPatch) -> dict[str, Study]:
    monkeypatch.setitem(presets.PRESETS, "tiny", TABLE)
    methods = ("stand-alone", "fedavg", "factorized-fl")
    domains = Study("domains", "tiny", tuple(Cell("domains", "domains", m, "tiny") for m in methods), seeds=(1, 2))
    own = Cell("ablation", "ablation", "factorized-fl", "tiny", variant="alone", settings={"tau": 1.0})
    ablation = Study("ablation", "tiny", (own,), domains.own[1:2])
    found = {"domains": domains, "ablation": ablation}
    monkeypatch.setattr(grid, "STUDIES", found)
    return found
