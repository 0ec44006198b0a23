"""The configuration of a run: one flat table of options, and a table of the method's options.

The methods are imported when a configuration is made, so `ffl --help` and `ffl presets` do not import PyTorch.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from factorized_fl.conflicts import CLIP, DELTA, refuse_uncovered, refuse_unencryptable
from factorized_fl.core.errors import UserError, unknown
from factorized_fl.core.named import is_named
from factorized_fl.core.options import check, limits_of, make, option
from factorized_fl.core.seeds import PERMUTATION_SEED
from factorized_fl.core.shapes import input_kind
from factorized_fl.profiles import DEFAULT_PROFILE, PROFILES, profile_settings

if TYPE_CHECKING:
    from factorized_fl.methods import Method

DEFAULT_ALPHA = 0.5
ALIGNMENTS = ("off", "statistics", "classifier", "true")
ORACLES = ("none", "groups", "aligned", "centralised")
AUGMENTS = ("paper", "none")
BUILT_IN = ("resnet9", "resnet18", "cnn")  # networks
# Options that methods got after some runs were made, with the values that describe those runs.
_EARLIER = {"fedfomo": {"statistics": "own"}, "clustered-fl": {"rule": "norms"}, "pfedpara": {"head": "low-rank"}}


@dataclass(frozen=True)
class Config:
    """All settings that decide the results of a run. The defaults are the paper's."""

    preset: str = option("", "the preset that this configuration started from")
    profile: str = option(
        "none", "the profile that filled in the options that were left open", choices=("none", *PROFILES)
    )
    dataset: str = option("embedded", "cifar10, svhn, mnist, cifar100-domains, embedded, folder, ...")
    image_size: int = option(0, "side of the images in pixels; 0 keeps the source's", low=0, high=1024)
    channels: int = option(0, "1 grey, 3 colour; 0 keeps the source's", low=0, high=3)
    inputs: str = option(
        "", "between organisations: type and shape of an input that is no image, such as float32 2x20 or int64 6"
    )
    partition: str = option("iid", "how the images of a domain are split between clients", choices=("iid", "dirichlet"))
    alpha: float = option(DEFAULT_ALPHA, "concentration of the Dirichlet partition", above=0)
    permuted: bool = option(False, "each client numbers its classes in its own order")
    permutation_seed: int = option(PERMUTATION_SEED, "the paper's fixed global seed of the label permutations", low=0)
    partition_seed: int = option(0, "seed of the splits and of the partition; 0 uses `seed`", low=0)
    clients: int = option(20, "number of clients", low=1)
    clients_per_domain: tuple[int, ...] = option((), "clients of each domain; empty: equal numbers", low=1)
    images_per_client: int = option(0, "largest number of training images of a client; 0: no limit", low=0)
    test_images: int = option(
        0, "largest number of test and of validation images of a domain or own client; 0: no limit", low=0
    )
    scrambled: int = option(0, "number of clients, counted from the last, with random training labels", low=0)
    train_share: float = option(
        0.8, "share for training; validation and test get half of the rest each", above=0, high=0.98
    )
    model: str = option("resnet9", "network: resnet9, resnet18, cnn, or package.module:factory")
    classifier: str = option(
        "", "the module of your own network that is its classifier; empty: head, or the last layer"
    )
    width: float = option(1.0, "factor on all channel counts", above=0, high=8)
    head_layers: int = option(1, "fully connected layers of the classifier", low=1, high=2)
    head_norm: bool = option(False, "BatchNorm between the two layers of the classifier")
    head_width: int = option(
        0, "outputs of the first of the classifier's two layers; 0: as many as it has inputs", low=0
    )
    method: str = option("factorized-fl", "see `ffl methods`")
    rounds: int = option(50, "communication rounds", low=1)
    epochs: int = option(5, "local epochs per round", low=1)
    fraction: float = option(1.0, "share of the clients that is sampled in a round", above=0, high=1)
    stale: str = option(
        "keep",
        "whether an aggregation counts the last updates of clients that sat out the last round (keep) or not (forget)",
        choices=("keep", "forget"),
    )
    storage: str = option(
        "auto",
        "where clients lie; auto: on disk from 1000 clients or 4 GiB on; a round then touches participants only",
        choices=("auto", "memory", "disk"),
    )
    dropout: float = option(0.0, "probability that a sampled client fails in a round", low=0, high=0.95)
    batch_size: int = option(256, "images per step; the last incomplete batch of an epoch is dropped", low=2)
    optimizer: str = option("sgd", "sgd, adamw or another of torch.optim in small letters, or package.module:name")
    lr: float = option(1e-3, "learning rate", above=0, high=1e30)
    momentum: float = option(0.9, "momentum of SGD, kept by each client across rounds", low=0, high=0.9999)
    weight_decay: float = option(1e-6, "weight decay", low=0)
    schedule: str = option(
        "constant", "learning rate over the run: constant, cosine, linear, warm-up-cosine, or package.module:function"
    )
    clip_norm: float = option(0.0, "largest norm of a gradient; 0: no limit", low=0)
    ema: float = option(
        0.0,
        "weight of the past in averaged weights, which are tested in place of the last; 0: none",
        low=0,
        high=0.99999,
    )
    loss: str = option(
        "cross-entropy", "cross-entropy, balanced-cross-entropy, binary, squared-error, or package.module:function"
    )
    class_weights: tuple[float, ...] = option((), "weights of the classes in the loss; empty: equal", above=0)
    metrics: tuple[str, ...] = option((), "metrics of the tests, the first decides verdicts; empty: accuracy or r2")
    augment: str = option("paper", "the authors' augmentation (paper), none, or package.module:function")
    precision: str = option("bf16", "precision of convolutions on a GPU", choices=("bf16", "tf32", "fp32"))
    cpu_precision: str = option(
        "fp32", "the same on a CPU; auto: bf16 where it is faster", choices=("fp32", "bf16", "auto")
    )
    repeatable: bool = option(
        False, "two processes on one GPU give identical bits, which is slower; on a CPU they always do"
    )
    score: str = option(
        "test", "the split that is scored; use validation to choose options", choices=("test", "validation")
    )
    test_every: int = option(1, "rounds from one test of the clients to the next; the last round has one", low=1)
    recalibrate: bool = option(
        False,
        "test and export models whose BatchNorm statistics are measured again on training images without augmentation",
    )
    control: bool = option(
        False, "each client aggregates with itself alone: what the method reaches without the other clients"
    )
    align: str = option(
        "off",
        "match the classes of different clients, and aggregate classifiers by class: match by statistics of images, by "
        "changes of the classifier, or by the true classes (simulations only)",
        choices=ALIGNMENTS,
    )
    align_confidence: float = option(0.3, "least confidence of a match that is used", low=0, high=1)
    align_noise: float = option(0.0, "Gaussian noise on the statistics, in units of their spread between images", low=0)
    align_classes: int = option(
        0, "room for the classes of each client in what is sent; 0: as many as any client has", low=0
    )
    oracle: str = option(
        "none",
        "use knowledge that only a simulation has: aggregate inside the true domains (groups), also with "
        "true labels (aligned), or train on each domain's pooled images (centralised)",
        choices=ORACLES,
    )
    min_peers: float = option(
        0.0, "a client with fewer effective peers receives its own tensors back; 0: no minimum", low=0, high=100_000
    )
    protect: str = option(
        "none",
        "encrypt: the server computes weighted sums of ciphertexts and never sees a shared tensor",
        choices=("none", "encrypt"),
    )
    robust: str = option(
        "none",
        "limit what one client does to others: clip distances to their median, or a median or trimmed mean",
        choices=("none", "clip", "median", "trim"),
    )
    privacy_epsilon: float = option(
        0.0,
        "differential privacy of each training example: largest epsilon over the whole run; 0: none",
        low=0,
        high=1e3,
    )
    privacy_delta: float = option(DELTA, "probability with which epsilon may not hold", above=0, high=0.01)
    privacy_clip: float = option(CLIP, "largest norm of an example's gradient", above=0)
    seed: int = option(1, "decides splits, initial weights, batches and augmentation", low=0)
    options: Mapping[str, Any] = field(default_factory=dict)  # all options of the method

    def __post_init__(self) -> None:
        check(self)
        if self.inputs:
            input_kind(self.inputs)
        if self.model not in BUILT_IN and not self.has_own_model:
            raise UserError(
                f"model = {self.model!r} must be one of {', '.join(BUILT_IN)}, or a factory 'package.module:name'."
            )
        if self.classifier and not self.has_own_model:
            raise UserError(
                f"classifier = {self.classifier!r} has no effect on the network {self.model}: leave it out."
            )
        if self.augment not in AUGMENTS and not is_named(self.augment):
            raise UserError(
                f"augment = {self.augment!r} must be one of {', '.join(AUGMENTS)}, or a function 'package.module:name'."
            )
        if self.alpha != DEFAULT_ALPHA and self.partition != "dirichlet":
            raise UserError(
                f"alpha = {self.alpha} has no effect with partition = {self.partition!r}: use partition = 'dirichlet'."
            )
        if self.control and self.oracle != "none":
            raise UserError(
                f"oracle = '{self.oracle}' has no effect with control = true, in which no client meets another: "
                "leave one of them out."
            )
        if self.align != "off" and self.oracle != "none":
            raise UserError(
                f"align = '{self.align}' and oracle = '{self.oracle}' both decide which classes are the same: "
                "leave one of them out."
            )
        if self.align_noise and self.align != "statistics":
            raise UserError(
                f"align_noise = {self.align_noise:g} has no effect where no statistics travel: "
                "set align = 'statistics'."
            )
        method = self.build_method()
        object.__setattr__(self, "options", dataclasses.asdict(method))
        if self.protect == "encrypt":
            refuse_unencryptable(self, method)
        refuse_uncovered(self, method)

    @property
    def exchanges(self) -> bool:
        """Whether clients receive anything from each other; otherwise no traffic is counted."""
        return not self.control and self.oracle != "centralised"

    @property
    def encrypts(self) -> bool:
        """Whether clients encrypt what they share; without an exchange between clients there is nothing to encrypt."""
        return self.protect == "encrypt" and self.exchanges

    @property
    def has_own_model(self) -> bool:
        """Whether the network is the caller's own, made by a factory "module:name"."""
        return is_named(self.model)

    def build_method(self) -> "Method":
        """An instance of the configured method."""
        from factorized_fl.methods import make_method

        return make_method(self.method, self.options)

    def refuse_unkept(self) -> None:
        """Raise a UserError if this configuration changes when it is written and read, as wrong types may."""
        try:
            same = from_table(tomllib.loads(self.to_toml())) == self
        except (TypeError, ValueError, UserError) as error:
            raise UserError(f"This configuration cannot be written down and read again: {error}") from None
        if not same:
            raise UserError("This configuration is not the same after it is written down and read again.")

    def to_toml(self) -> str:
        """The configuration as TOML; `from_table` of the parsed text returns an equal configuration."""
        return tomli_w.dumps({f.name: getattr(self, f.name) for f in dataclasses.fields(self)})


def from_table(table: Mapping[str, Any]) -> Config:
    """The configuration of a parsed TOML table; raises a UserError for a name or a value that does not exist."""
    as_table(table.get("options", {}), "options")
    return make(Config, table, "option")


def upgrade(table: Mapping[str, Any]) -> dict[str, Any]:
    """The complete table of a run, as this version would have written it; earlier versions had other options."""
    if "recalibrate" in table or not isinstance(options := table.get("options"), Mapping):
        return dict(table)
    options = {**_EARLIER.get(str(table.get("method")), {}), **options}
    return {**table, "profile": "none", "recalibrate": options.pop("settle", False), "options": options}


def as_table(value: Any, name: str) -> Mapping[str, Any]:
    """The value, if it is a table; raises a UserError otherwise."""
    if not isinstance(value, Mapping):
        raise UserError(f"{name} = {value!r} must be a table: write [{name}], then one option on each line.")
    return value


def read_table(path: Path) -> dict[str, Any]:
    """The table in a TOML file; raises a UserError if there is no such file or it is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"There is no configuration file '{path}'.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"Cannot read the configuration '{path}': {error}.") from None


def _unknown_setting(method: str, key: str, known: set[str]) -> UserError:
    """The error for a name that is no option of a run with the method; it may be an option of another method."""
    from factorized_fl.methods import METHODS

    if key == "settle":
        return UserError("The option 'settle' of methods is now the option 'recalibrate' of a run: write recalibrate=.")
    owner = next((name for name, cls in METHODS.items() if key in {f.name for f in dataclasses.fields(cls)}), None)
    if owner is None:
        meanings = {limits.description: f.name for f in dataclasses.fields(Config) if (limits := limits_of(f))}
        if meant := meanings.get(key.replace("_", " ")):  # as in learning_rate, which is lr
            return UserError(f"There is no option '{key}': write {meant}=. `ffl options {method}` lists all.")
        return unknown(f"option of a run with {method}", key, known, f"`ffl options {method}`")
    return UserError(
        f"{method} has no option '{key}': {owner} has it. In a comparison write --set {owner}.{key}=..., "
        f"and see `ffl options {method}`."
    )


def flat_name(name: str) -> str:
    """The name of an option without a dot: privacy.epsilon is privacy_epsilon."""
    return name.replace(".", "_", 1) if name.startswith("privacy.") else name


def resolve(table: Mapping[str, Any], method: str | None = None, settings: Mapping[str, Any] | None = None) -> Config:
    """The configuration of a preset's or a file's table, with a method and single settings laid over it.

    A preset may hold options for several methods (``[methods.NAME]``): those of the chosen method apply. A setting is
    an option of the run or of the method; no name may be both. METHOD.NAME is NAME for a run of that method. A profile
    fills in what table and settings leave open. Raises a UserError for a setting that does not fit.
    """
    from factorized_fl.methods import find_method, make_method

    if "settle" in as_table(table.get("options", {}), "options"):
        table = upgrade(table)
    values = {key: value for key, value in table.items() if key not in ("methods", "options")}
    settings = {flat_name(name): value for name, value in (settings or {}).items()}
    wanted = settings.pop("method", None)
    if method is not None and wanted not in (None, method):
        raise UserError(f"The method is given twice: '{method}' and '{wanted}'.")
    if "preset" in settings:
        raise UserError("The preset cannot be a setting: give it as the argument, as in `ffl run PRESET`.")
    chosen = (name for name in (method, wanted, values.get("method")) if name is not None)
    values["method"] = next(chosen, "factorized-fl")
    fields = {f.name for f in dataclasses.fields(Config)} - {"options"}
    method_fields = {f.name for f in dataclasses.fields(find_method(values["method"]))}
    if twice := sorted(fields & method_fields):
        raise UserError(
            f"{values['method']} has an option '{twice[0]}', which is also an option of every run: "
            "rename the method's option."
        )
    if inside := sorted(table.keys() & method_fields):
        raise UserError(f"'{inside[0]}' is an option of {values['method']}: write it below a line [options].")
    for_methods = as_table(table.get("methods", {}), "methods")
    for name, given in for_methods.items():
        make_method(name, as_table(given, f"methods.{name}"))
    options = dict(for_methods.get(values["method"], {}))
    if values["method"] == table.get("method", values["method"]):
        options |= as_table(table.get("options", {}), "options")
    for key, value in sorted(settings.items(), key=lambda item: "." in item[0]):  # METHOD.NAME overrides NAME
        for_method, _, key = key.rpartition(".")
        if for_method not in ("", values["method"]):
            raise UserError(f"'{for_method}.{key}' is a setting for {for_method}, but {values['method']} is run.")
        if key in fields - {"method", "preset"}:
            values[key] = value
        elif key in method_fields:
            options[key] = value
        else:
            raise _unknown_setting(values["method"], key, fields | method_fields)
    profile = values.setdefault("profile", DEFAULT_PROFILE)
    filled_in = profile_settings(str(profile), values["method"])
    if ":" in str(values.get("model", "")) or values.get("optimizer", "sgd") != "sgd":
        filled_in.pop("lr", None)  # it was chosen for SGD and for networks of the package
    for key, value in filled_in.items():
        (values if key in fields else options).setdefault(key, value)
    return from_table({**values, "options": options})
