"""Arguments and results of a method's hooks: batches, a client's view, the server's view, a mixing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from factorized_fl.core.mixing import Dense, Weights, dense
from factorized_fl.core.roles import Role

Tensors = dict[str, torch.Tensor]
Roles = Mapping[str, Role]


@dataclass(frozen=True)
class Batch:
    """Images ready for the model, and their labels."""

    images: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class Phase:
    """One part of a client's local training."""

    name: str = ""
    epochs: int | None = None  # passes over the data; None: as many as the run has epochs
    model: str = ""  # the model that trains: "" is the client's own, else one of the method's `further_models`
    trains: Callable[[Role], bool] | None = None  # the roles whose parameters train; None: all of them


@dataclass(frozen=True)
class Local:
    """A method's view of a client: in a local step, and in the hooks before and after training.

    `loss_gradient` returns the gradient of the loss at any parameters on one batch. Running statistics among these are
    used and updated in place of the model's. A third argument, a function of the classifier's inputs, returns a term
    that is added to the loss. `tensors` are all tensors of the model at hand, `kept` those that the method keeps on the
    client between rounds. `finish` may change both in place, and `receive` may change `kept`; the `tensors` of
    `receive` and `tested` are copies.

    `features` and `loss` look at all training images, not augmented, with the given tensors in place of the client's.
    """

    loss_gradient: Callable[..., Tensors]
    roles: Roles
    shared: frozenset[str]  # the names that travel
    start: Tensors  # the parameters that this round began with
    tensors: Tensors = field(default_factory=dict)
    kept: Tensors = field(default_factory=dict)
    extra: Tensors = field(default_factory=dict)  # named payloads of this round's download
    models: Mapping[str, Tensors] = field(default_factory=dict)  # the client's further models
    phase: Phase = Phase()
    steps: int = 0  # steps of this round that are done
    epoch_steps: int = 0  # steps of one local epoch, if the method `counts_steps`
    lr: float = 0.0  # the learning rate
    trained: frozenset[str] = frozenset()  # the names of the parameters that training changes
    batches: Callable[[], Iterator[Batch]] = lambda: iter(())  # this round's training batches, from the first
    classes: int = 0  # the number of the client's classes
    last: bool = False  # whether this is the last round of the run
    # The inputs of the classifier's last layer in evaluation mode, [n, D], and the labels, [n].
    features: Callable[[Tensors], tuple[torch.Tensor, torch.Tensor]] = lambda tensors: (torch.empty(0), torch.empty(0))
    # The mean loss; BatchNorm uses the statistics of each batch, so that models of other clients are judged fairly.
    loss: Callable[[Tensors], float] = lambda tensors: 0.0
    # Copies of these tensors, trained in some phases with a fresh optimiser: for `tested`, as its last call.
    tune: Callable[[Tensors, Sequence[Phase]], Tensors] = lambda tensors, phases: tensors


@dataclass(frozen=True)
class Server:
    """The server's view when it mixes: the tensors last received from every client, and nothing else."""

    round: int
    clients: Sequence[int]  # the participants of this round
    stack: Tensors  # name -> [K, ...] for the names that travel
    start: Tensors  # the same names, at the start of each client's last training (only with `needs_start`)
    fingerprints: torch.Tensor | None  # [K, D]
    sizes: torch.Tensor  # numbers of training images, float64 [K]
    received: torch.Tensor  # bool [K]: has this client ever sent an update?
    state: Tensors  # the `Mixing.state` that the method's last `mix` returned
    rng: np.random.Generator
    # The losses of client k on its held-out images with each of M sets of shared tensors, [M, ...], in its own model.
    validation_losses: Callable[[int, Tensors], Sequence[float]]
    initial: Tensors = field(default_factory=dict)  # the shared tensors that all clients began with
    updated: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))  # [K]: in the last round
    extra: Tensors = field(default_factory=dict)  # named payloads that clients last sent, [K, ...]
    # Where classes are matched: int64 [K, M]. Classes with one number are the same; -1 is a class without a match.
    labels: torch.Tensor | None = None


@dataclass(frozen=True)
class Mixing:
    """The result of `mix`: the weights with which each client receives the tensors of the others.

    A plain K x K tensor is accepted as `weights`. `rows` replaces the weights for some tensors by ready values, with a
    leading axis of 1 (the same for all) or of one row for each participant. `extra` are payloads besides the model's
    tensors, with the same leading axis.
    """

    weights: Weights
    similarity: torch.Tensor | None = None  # float64 [K, K]: the similarities behind the weights
    state: Tensors = field(default_factory=dict)  # the method's memory: the next `Server.state`
    downloads: torch.Tensor | None = None  # numbers of models sent to each client, [K]; by default one each
    revert: torch.Tensor | None = None  # bool [K]: the client reverts to the start of its last training
    others: Mapping[str, Weights] = field(default_factory=dict)  # other weights for some tensors, by name
    rows: Tensors = field(default_factory=dict)
    extra: Tensors = field(default_factory=dict)
    influence: torch.Tensor | None = None  # float64 [K, K]: share of each client in how far a receiver is moved

    def __post_init__(self) -> None:
        if isinstance(self.weights, torch.Tensor):
            object.__setattr__(self, "weights", Dense(self.weights))
        others = {n: Dense(w) if isinstance(w, torch.Tensor) else w for n, w in self.others.items()}
        object.__setattr__(self, "others", others)

    @property
    def matrix(self) -> torch.Tensor:
        """The weights as a K x K matrix: for few clients."""
        return dense(self.weights)


@dataclass(frozen=True)
class Trained:
    """The result of a client's local training: the mean loss over its steps, and their number."""

    loss: float
    steps: int


@dataclass(frozen=True)
class Evaluated:
    """The result of testing a client's own model.

    Where accuracy is the only metric, as it is by default, `correct` and `total` say everything and `metrics` is empty.
    """

    correct: int | None  # None if outputs are not scores of classes
    total: int
    loss: float
    # For each test image, in the order of the client's test images, whether it was classified right: bool [total].
    # None where another metric than accuracy is the primary one.
    right: torch.Tensor | None = field(default=None, compare=False)
    metrics: Mapping[str, float] = field(default_factory=dict)  # by name, the primary one first; NaN if undefined
    primary: float | None = None  # the primary metric as a score, of which more is better
    error: float | None = None  # standard error of the primary metric on these test examples

    @property
    def accuracy(self) -> float | None:
        """The share of examples classified right; None if outputs are not scores of classes."""
        return None if self.correct is None else self.correct / self.total

    @property
    def score(self) -> float:
        """The number by which models are compared: the primary metric, or else the accuracy."""
        found = self.accuracy if self.primary is None else self.primary
        assert found is not None
        return found

    @property
    def words(self) -> str:
        """The primary metric for people, as in "91.20% of own test examples" or "auroc 0.912"."""
        if self.metrics:
            name, value = next(iter(self.metrics.items()))
            return f"{name} {value:.4g} on own test examples"
        return f"{100 * self.score:.2f}% of own test images"


@dataclass(frozen=True)
class Cost:
    """Numbers that the paper's cost formula counts for one client and one round, each way."""

    up: int
    down: int
