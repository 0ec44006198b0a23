import tomllib
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorized_fl.api import configure, run
from factorized_fl.config import Config, from_table, read_table, resolve
from factorized_fl.core.errors import UserError
from factorized_fl.core.options import option
from factorized_fl.core.toml_text import parse_setting
from factorized_fl.methods import METHODS, Card, Method, register
from factorized_fl.methods.stand_alone import StandAlone
from factorized_fl.presets import PRESETS, preset_values
from factorized_fl.profiles import PROFILES


@given(
    rounds=st.integers(1, 10**6),
    lr=st.floats(1e-12, 1e6),
    seed=st.integers(0, 2**40),
    preset=st.text(max_size=20),
    tau=st.floats(-1, 1),
    shares=st.lists(st.integers(1, 99), max_size=4),
)
def test_toml_round_trip(tmp_path_factory, rounds, lr, seed, preset, tau, shares) -> None:
    config = Config(
        preset=preset, rounds=rounds, lr=lr, seed=seed, clients_per_domain=tuple(shares), options={"tau": tau}
    )
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert from_table(read_table(path)) == config


def test_files_of_earlier_versions_are_read() -> None:
    """They have a list on one line and an escaped tab; tomli_w writes the rest as they have it."""
    config = Config(preset='\x7f\t"é', clients_per_domain=(4, 5), weight_decay=1e-6)
    new = config.to_toml()
    old = new.replace("[\n    4,\n    5,\n]", "[4, 5]").replace("\t", "\\t")
    assert old.startswith('preset = "\\u007f\\t\\"é"\n')
    assert "clients_per_domain = [4, 5]\n" in old
    assert "weight_decay = 1e-06\n" in old
    assert from_table(tomllib.loads(old)) == from_table(tomllib.loads(new)) == config


@pytest.mark.parametrize("preset", PRESETS)
def test_the_values_of_a_preset_are_those_of_its_configuration(preset: str) -> None:
    values, config = preset_values(preset), configure(preset)
    of_method = PROFILES[config.profile].get("methods", {}).get(config.method, {})
    values = {name: value for name, value in values.items() if name not in of_method}
    assert {name: getattr(config, name) for name in values} == values


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid_for_every_method(preset: str) -> None:
    for method in METHODS:
        assert configure(preset, method).method == method


def test_paper_setting() -> None:
    config = configure("cifar10-permuted-non-iid", "factorized-fl-beta")
    assert (config.clients, config.rounds, config.epochs, config.batch_size) == (20, 50, 5, 256)
    assert (config.lr, config.momentum, config.weight_decay) == (1e-3, 0.9, 1e-6)
    assert (config.partition, config.alpha, config.permuted, config.model) == ("dirichlet", 0.5, True, "resnet9")
    matching = {"tau": 0.0, "epsilon": 20.0, "minimum": 1, "sparsity": 5e-4, "l1": True, "penalty": "step"}
    parts = {"init": "xavier", "include": (), "keep_dense": ()}
    faithful = {"layout": "taps", "prune": "test", "head": "share", "head_mu": "zero", "sequential": False}
    fingerprint = {"match": "v", "blur": 0.0, "clip": 10.0}
    assert config.options == matching | faithful | fingerprint | parts
    released = configure("cifar100-domains-released", "factorized-fl")
    assert released.rounds == 100
    matching = {"tau": 0.95, "epsilon": 20.0, "minimum": 4, "sparsity": 5e-4, "l1": False, "penalty": "step"}
    deviations = {"layout": "released", "prune": "test", "head": "reset", "head_mu": "xavier", "sequential": True}
    assert released.options == matching | deviations | fingerprint | parts


def test_settings_go_to_the_run_or_to_the_method() -> None:
    config = configure("demo", "factorized-fl", rounds=3, tau=0.25)
    assert (config.rounds, config.options["tau"]) == (3, 0.25)


def test_an_option_of_a_method_may_not_have_the_name_of_a_runs_option(monkeypatch) -> None:
    @dataclass(frozen=True)
    class Clashing(StandAlone):
        name = "clashing"
        alpha: float = option(0.1, "the method's alpha")

    monkeypatch.setitem(METHODS, "clashing", Clashing)
    with pytest.raises(UserError, match="clashing has an option 'alpha', which is also an option of every run: rename"):
        configure("demo", "clashing")


def test_a_files_options_belong_to_its_own_method() -> None:
    table = {"method": "factorized-fl", "options": {"tau": 0.1}}
    assert resolve(table).options["tau"] == 0.1
    assert resolve(table, "fedavg").options == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds=3", ("rounds", 3)),
        ("lr=1e-3", ("lr", 1e-3)),
        ("permuted=true", ("permuted", True)),
        ("model=cnn", ("model", "cnn")),
        ("clients_per_domain=[1, 2]", ("clients_per_domain", [1, 2])),
    ],
)
def test_parse_setting(text: str, expected: tuple) -> None:
    assert parse_setting(text) == expected


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 0}, "rounds = 0 must be at least 1"),
        ({"rounds": 2.5}, "must be a whole number"),
        ({"rounds": True}, "must be a whole number"),
        ({"lr": 0.0}, "must be above 0"),
        ({"lr": float("nan")}, "must be a finite number"),
        ({"lr": "fast"}, "must be a number"),
        ({"fraction": 1.5}, "must be at most 1"),
        ({"partition": "random"}, "must be one of iid, dirichlet"),
        ({"rouns": 3}, "Did you mean 'rounds'"),
        ({"tau": 2.0}, "tau = 2.0 must be at most 1"),
        ({"clients_per_domain": [0, 3]}, "must be at least 1"),
        ({"clients_per_domain": "4,4,4"}, r"must be a list of whole numbers: write it as \[1, 2, 3\]"),
        ({"permuted": "yes"}, "must be true or false"),
        ({"method": "fedavg"}, "given twice: 'factorized-fl' and 'fedavg'"),
        ({"preset": "demo"}, "The preset cannot be a setting: give it as the argument"),
        ({"alpha": 0.01}, "alpha = 0.01 has no effect with partition = 'iid': use partition = 'dirichlet'"),
        ({"blur": 0.9}, "blur = 0.9 has no effect where no statistics travel: set match=statistics"),
        ({"lr": 1e308}, "must be at most"),
    ],
)
def test_bad_settings(settings: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        configure("demo", "factorized-fl", **settings)


def test_a_method_without_a_name_is_not_the_default() -> None:
    with pytest.raises(UserError, match="Unknown method ''"):
        configure("demo", "")
    with pytest.raises(UserError, match="more than one line"):
        parse_setting("rounds=2\nseed=4")


def test_a_file_may_start_with_a_byte_order_mark(tmp_path) -> None:
    (tmp_path / "x.toml").write_text('\ufeffdataset = "demo"\nrounds = 3\n', encoding="utf-8")
    assert configure(tmp_path / "x.toml").rounds == 3


def test_register_needs_the_parts_of_a_method() -> None:
    class Nameless(Method):
        card = Card(title="Nameless")

    with pytest.raises(UserError, match="The method Nameless has no 'name'"):
        register(Nameless)
    with pytest.raises(UserError, match=r"inherit ffl\.Method"):
        register(dict)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"name": 5}, "The name 5 is not valid for a method"),
        ({"name": "../../x"}, "use small letters, digits and hyphens"),
        ({"card": ("dense", "SGD", "body", "mean")}, "The card of mine must be a Card"),
        ({"card": Card}, "The card of mine must be a Card"),
        ({"k": option(3, "how many")}, r"Mine has options: put @dataclass\(frozen=True\) right above its class"),
    ],
)
def test_register_refuses_malformed_parts(parts: dict[str, Any], words: str) -> None:
    whole = {"name": "mine", "card": Card(title="Mine")}
    with pytest.raises(UserError, match=words):
        register(type("Mine", (Method,), whole | parts))
    assert "mine" not in METHODS


def test_register_refuses_an_option_without_a_default() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(Method):
        name = "mine"
        k: int

    with pytest.raises(UserError, match="The option 'k' of mine has no default: give it one"):
        register(Mine)


def test_a_registered_method_does_not_inherit_the_card_of_another(monkeypatch) -> None:
    monkeypatch.setattr("factorized_fl.methods.METHODS", dict(METHODS))
    mine = register(type("Mine", (StandAlone,), {"name": "mine"}))
    assert (mine.card.title, mine.card.paper, mine.card.published_gb) == ("mine", "unpublished", None)
    assert mine.card.row == StandAlone.card.row


def test_the_default_of_an_option_must_fit_into_a_file() -> None:
    with pytest.raises(UserError, match=r"The default of an option must be a number, .* not None \(how many\)"):
        option(None, "how many")


def test_a_file_may_extend_a_preset(tmp_path) -> None:
    (tmp_path / "mine.toml").write_text('preset = "demo"\nrounds = 3\n[methods.fedprox]\nproximal = 0.5\n')
    mine, demo = configure(tmp_path / "mine.toml"), configure("demo")
    assert mine == replace(demo, rounds=3)
    assert configure(tmp_path / "mine.toml", "fedprox").options["proximal"] == 0.5
    assert configure(tmp_path / "mine.toml", "factorized-fl").options == configure("demo", "factorized-fl").options
    (tmp_path / "mine.toml").write_text('preset = "dmo"\nrounds = 3\n')
    with pytest.raises(UserError, match=r"Unknown preset 'dmo'\. Did you mean 'demo'"):
        configure(tmp_path / "mine.toml")


def test_the_configuration_of_a_run_does_not_depend_on_its_preset(tmp_path) -> None:
    past = replace(configure("demo", "fedavg"), preset="of old", model="resnet9")
    (tmp_path / "config.toml").write_text(past.to_toml())
    assert configure(tmp_path / "config.toml") == past


def test_an_option_of_a_method_belongs_into_its_table(tmp_path) -> None:
    (tmp_path / "a.toml").write_text('method = "fedprox"\nproximal = 0.5\n')
    with pytest.raises(UserError, match=r"'proximal' is an option of fedprox: write it below a line \[options\]"):
        configure(tmp_path / "a.toml")


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean 'factorized-fl'"):
        configure("demo", "factorised-fl")
    with pytest.raises(UserError, match="Did you mean 'cifar10-permuted-iid'"):
        configure("cifar10-permutd-iid")


def test_a_method_may_be_a_setting() -> None:
    assert configure("demo", **{"method": "fedavg"}).method == "fedavg"
    with pytest.raises(UserError, match="Unknown method 'fedavgg'"):
        configure("demo", method="fedavgg")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("options = 3", r"options = 3 must be a table: write \[options\]"),
        ("[[options]]", "must be a table"),
        ("methods = 3", "methods = 3 must be a table"),
        ("[methods]\nfedavg = 3", "methods.fedavg = 3 must be a table"),
        ("[methods.nope]", "Unknown method 'nope'"),
        ("[methods.fedprox]\nproximl = 1.0", "Did you mean 'proximal'"),
        ("method = 3", "Unknown method '3'"),
        ('method = ["fedavg"]', "Unknown method"),
    ],
)
def test_tables_and_methods_of_the_wrong_kind(text: str, words: str, tmp_path) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(UserError, match=words):
        configure(str(tmp_path / "a.toml"))


def test_bad_files(tmp_path) -> None:
    with pytest.raises(UserError, match="no configuration file"):
        configure(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(UserError, match="Cannot read the configuration"):
        configure(str(tmp_path / "bad.toml"))


def test_a_complete_configuration_takes_no_settings(tmp_path) -> None:
    for more in ({"method": "stand-alone"}, {"rounds": 7}, {"nonsense": 3}):
        with pytest.raises(UserError, match="A Config is complete: pass method and settings to `configure`"):
            run(configure("demo"), tmp_path / "run", **more)
