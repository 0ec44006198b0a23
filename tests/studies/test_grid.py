from pathlib import Path

import pytest

from factorized_fl.core.errors import UserError
from factorized_fl.methods import METHODS
from studies.paper.grid import STUDIES, select
from studies.paper.jobs import chosen_options


def test_every_cell_has_a_valid_configuration_and_a_name_of_its_own() -> None:
    cells = [cell for study in STUDIES.values() for cell in study.own]
    assert len({cell.name for cell in cells}) == len(cells)
    for cell in cells:
        config = cell.config()
        assert (config.method, config.seed) == (cell.method, 1)
        assert cell.method in METHODS


def test_no_two_cells_are_the_same_run() -> None:
    """A run that two tables show is run for one of them and borrowed by the other, with what was chosen here."""
    cells = [cell for study in STUDIES.values() for cell in study.own]
    chosen = chosen_options(Path(__file__).parents[2] / "results" / "paper")
    configurations = [cell.config(chosen(cell)).to_toml() for cell in cells]
    twice = [cell.name for cell, text in zip(cells, configurations, strict=True) if configurations.count(text) > 1]
    assert not twice


def test_borrowed_cells_are_some_other_studys_own() -> None:
    owned = {cell.name: name for name, study in STUDIES.items() for cell in study.own}
    for name, study in STUDIES.items():
        assert all(owned[cell.name] != name for cell in study.borrowed)


@pytest.mark.parametrize("what", ["label-cifar10", "label-svhn"])
def test_label_studies_have_36_cells_permuted_first_and_the_claims_methods_first(what: str) -> None:
    cells = STUDIES[what].cells()
    assert len(cells) == 36
    assert all(cell.config().permuted for cell in cells[:18])
    assert not any(cell.config().permuted for cell in cells[18:])
    first = [cell.method for cell in cells[:18:2]]
    assert first[:5] == ["stand-alone", "fedavg", "factorized-fl", "factorized-fl-beta", "pfedpara"]
    assert len(set(first)) == 9


def test_all_first_seeds_come_before_second_seeds() -> None:
    seeds = [cell.seed for cell in select(["domains"], [3, 1])]
    assert seeds == [3] * 9 + [1] * 9


def test_selection_narrows_and_runs_nothing_twice() -> None:
    both = select(["domains", "ablation"], [1])
    assert len(both) == 9 + 7
    narrowed = select(["label-cifar10"], [1, 2], ["fedavg", "factorized-fl"], ["permuted-iid"])
    assert [(cell.method, cell.seed) for cell in narrowed] == [
        *(("fedavg", 1), ("factorized-fl", 1), ("fedavg", 2), ("factorized-fl", 2)),
    ]
    assert {cell.variant for cell in select(["deviations"], methods=["factorized-fl+no-l1"])} == {"no-l1"}
    with pytest.raises(UserError, match="Did you mean 'fedavg'"):
        select(["domains"], methods=["fedavgg"])
    with pytest.raises(UserError, match="Unknown study 'domain'"):
        select(["domain"])


def test_choices_come_first_however_they_are_named() -> None:
    assert select(["ablation", "choices"]) == [*select(["choices"]), *select(["ablation"])]
