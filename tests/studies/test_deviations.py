from dataclasses import replace
from pathlib import Path

from factorized_fl.methods import METHODS
from factorized_fl.methods.factorized import Factorized
from studies.paper.grid import STUDIES
from studies.paper.jobs import files
from studies.paper.table import collect, reconstructed
from tests.studies.fake import factors, write


def test_every_departure_is_of_a_cell_that_a_table_of_the_paper_shows() -> None:
    shown = {
        (cell.study, cell.setting, cell.method)
        for name in ("label-cifar10", "label-svhn", "domains", "architectures")
        for cell in STUDIES[name].own
    }
    for cell in STUDIES["deviations"].shown:
        assert cell.about in shown
        if cell in STUDIES["deviations"].own:
            svhn = "svhn-" if cell.about[0] == "label-svhn" else ""
            assert f"{svhn}{cell.about[1]}" == cell.setting


def test_deviations_begin_with_all_at_once_then_what_baselines_leave_open() -> None:
    own = [cell for cell in STUDIES["deviations"].own if cell.config().clients > 1]
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
    dense = {cell.setting: cell.variant for cell in own if cell.config().options.get("head") == "dense"}
    assert dense == dict.fromkeys(("standard-iid", "standard-non-iid"), "lr=0.01+dense-head")
    assert rates == {0.01: {cell.setting for cell in own}, 0.005: {"permuted-iid", "permuted-non-iid"}}


def test_what_no_run_explains_yet_is_looked_into_first(tmp_path: Path) -> None:
    """The paper has 67.91, 50.24 and 47.60: one number is near, two are far, and one of these is brought near."""
    write(tmp_path, "label-cifar10", "factorized-fl", [67.0] * 20, setting="permuted-iid")
    write(tmp_path, "label-cifar10", "factorized-fl", [41.0] * 20, setting="permuted-non-iid")
    write(tmp_path, "label-cifar10", "per-fedavg", [44.0] * 20, setting="permuted-non-iid")
    settings = ["permuted-iid", "permuted-non-iid"]

    def left() -> list[str]:
        narrowed = {"methods": ["factorized-fl", "per-fedavg"], "settings": [*settings, "domains"]}
        paths = files(["deviations", "domains"], tmp_path, [1], **narrowed)
        return [str(path.relative_to(tmp_path)).removesuffix("-seed1.json") for path in paths if not path.exists()]

    far = [f"factorized-fl+{name}" for name in ("released", "epsilon=1", "no-l1", "head-mu")]
    drawn = [f"{row}+draw={seed}" for row in ("per-fedavg", "factorized-fl+released") for seed in (2, 3, 4)]
    found = left()
    assert found[:4] == [f"deviations/permuted-non-iid/{row}" for row in far]
    assert found[4:6] == ["domains/factorized-fl", "domains/per-fedavg"]
    assert found[6:12] == [f"deviations/permuted-non-iid/{row}" for row in drawn]
    assert {name.split("/")[1] for name in found[12:]} == {"permuted-iid", "domains"}
    write(tmp_path, "deviations", "factorized-fl+no-l1", [49.0] * 20, setting="permuted-non-iid")
    assert left()[:5] == ["domains/factorized-fl", "domains/per-fedavg", *found[6:9]]


def test_draws_change_who_holds_what_and_nothing_else() -> None:
    drawn = [cell for cell in STUDIES["deviations"].own if "draw=" in cell.variant]
    # Of baselines as they are, of CIFAR-10 and SVHN, and of the authors' methods with all deviations.
    assert len(drawn) == 15 + 6 + 12
    for cell in drawn:
        config = cell.config()
        without = cell.row.removesuffix(f"+draw={config.partition_seed}")
        what = "deviations" if "released" in without else cell.about[0]
        setting = cell.setting if what == "deviations" else cell.about[1]
        (usual,) = [c for c in STUDIES[what].own if (c.setting, c.row) == (setting, without)]
        assert replace(config, partition_seed=0) == usual.config()
        assert config.partition == "dirichlet"


def test_single_clients_have_the_deviations_that_concern_them() -> None:
    every = [cell for cell in STUDIES["deviations"].own if cell.config().clients == 1]
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


def test_what_can_be_reconstructed_is_taken_from_such_runs_or_missing(tmp_path: Path) -> None:
    shape = {"factors": factors(5, True)}
    for what, setting, row, percent in (
        ("label-cifar10", "permuted-iid", "fedavg", 66),
        ("label-cifar10", "permuted-iid", "pfedpara", 52),
        ("label-cifar10", "standard-iid", "pfedpara", 48),
        ("label-cifar10", "permuted-iid", "factorized-fl", 64),
        ("label-cifar10", "standard-iid", "factorized-fl", 65),
        ("label-svhn", "permuted-iid", "factorized-fl", 85),
        ("domains", "domains", "factorized-fl", 63),
        ("ablation", "ablation", "factorized-fl+three-best", 62),
        ("architectures", "resnet9-2fc", "mixed-layout", 36),
        ("deviations", "permuted-iid", "factorized-fl+released", 67),
        ("deviations", "permuted-iid", "factorized-fl+head-mu", 61),
        ("deviations", "svhn-permuted-iid", "factorized-fl+released", 86),
        ("deviations", "permuted-iid", "pfedpara+lr=0.01", 70),
        ("deviations", "resnet9-2fc", "mixed-layout+released", 60),
        ("similarity", "similarity", "factorized-fl+released", 68),
    ):
        more = shape if issubclass(METHODS[row.partition("+")[0]], Factorized) else {}
        write(tmp_path, what, row, [percent] * (1 if "resnet" in setting else 5), setting=setting, **more)
    last = {key: results[0].curve[-1][0] for key, results in reconstructed(collect(tmp_path)).cells.items()}
    assert last == {
        ("label-cifar10", "permuted-iid", "fedavg"): 0.66,
        ("label-cifar10", "permuted-iid", "pfedpara"): 0.7,
        ("label-cifar10", "permuted-iid", "factorized-fl"): 0.67,
        ("label-svhn", "permuted-iid", "factorized-fl"): 0.86,
        ("domains", "domains", "factorized-fl"): 0.68,
        ("architectures", "resnet9-2fc", "mixed-layout"): 0.6,
    }
