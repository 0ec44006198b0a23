from dataclasses import replace
from pathlib import Path

import pytest

from factorized_fl.errors import UserError
from factorized_fl.methods import METHODS
from factorized_fl.reproduce.choices import chosen_options
from factorized_fl.reproduce.studies import STUDIES, select


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


def test_departures_begin_with_all_at_once_then_what_baselines_leave_open() -> None:
    own = [cell for cell in STUDIES["departures"].own if cell.config().clients > 1]
    released = [cell.variant == "released" for cell in own]
    assert released == sorted(released, reverse=True)
    first = own[sum(released) :][:11]
    assert [cell.method for cell in first] == ["pfedpara", "pfedpara", *["fedfomo"] * 4, "pfedpara", *["fedfomo"] * 4]
    assert [cell.setting for cell in first] == ["permuted-iid"] * 6 + ["domains"] * 5
    fedfomo = [cell.config() for cell in first if cell.method == "fedfomo"]
    options = [(config.options["fallback"], config.options["tried_on"], config.lr) for config in fedfomo]
    tried = [("current", "validation"), ("start", "validation"), ("current", "holdout"), ("start", "holdout")]
    assert options == [(*choice, lr) for choice, lr in zip(tried, (1e-3, 1e-3, 1e-3, 1e-2), strict=True)] * 2
    rates: dict[float, set[str]] = {}
    for cell in own:
        if cell.method == "pfedpara":
            rates.setdefault(cell.config().lr, set()).add(cell.setting)
    assert rates == {0.01: {cell.setting for cell in own}, 0.005: {"permuted-iid", "permuted-non-iid"}}


def test_draws_change_who_holds_what_and_nothing_else() -> None:
    every = [*STUDIES["label-cifar10"].own, *STUDIES["departures"].own]
    drawn = [cell for cell in every if "draw=" in cell.variant]
    assert len(drawn) == 15 + 12  # of baselines as they are, and of the authors' methods with all departures
    for cell in drawn:
        config = cell.config()
        without = cell.row.removesuffix(f"+draw={config.partition_seed}")
        (usual,) = [c for c in every if (c.setting, c.row) == (cell.setting, without)]
        assert replace(config, partition_seed=0) == usual.config()
        assert config.partition == "dirichlet"


def test_single_clients_have_the_departures_that_concern_them() -> None:
    every = [cell for cell in STUDIES["departures"].own if cell.config().clients == 1]
    wide = [cell for cell in every if cell.method == "stand-alone"]
    assert sorted({(cell.setting, cell.config().head_width) for cell in wide}) == [
        (f"{model}-{head}", width)
        for model in ("resnet18", "resnet9")
        for head in ("2fc", "2fc-norm")
        for width in (64, 1024)
    ]
    alone = [cell for cell in every if cell not in wide]
    assert len({cell.setting for cell in alone}) == 6
    assert {cell.variant for cell in alone} == {"released"}
    for cell in alone:
        options = cell.config().options
        assert (options["l1"], options["head_mu"]) == (False, "xavier")
        assert options["layout"] == {"factorized-fl": "released", "mixed-layout": "mixed"}[cell.method]


def test_selection_narrows_and_runs_nothing_twice() -> None:
    both = select(["domains", "ablation"], [1])
    assert len(both) == 9 + 5
    narrowed = select(["label-cifar10"], [1, 2], ["fedavg", "factorized-fl"], ["permuted-iid"])
    assert [(cell.method, cell.seed) for cell in narrowed] == [
        *(("fedavg", 1), ("factorized-fl", 1), ("fedavg", 2), ("factorized-fl", 2)),
    ]
    assert {cell.variant for cell in select(["departures"], methods=["factorized-fl+no-l1"])} == {"no-l1"}
    with pytest.raises(UserError, match="Did you mean 'fedavg'"):
        select(["domains"], methods=["fedavgg"])
    with pytest.raises(UserError, match="Unknown study 'domain'"):
        select(["domain"])


def test_choices_come_first_however_they_are_named() -> None:
    assert select(["ablation", "choices"]) == [*select(["choices"]), *select(["ablation"])]
