"""Cards: what is reported about a method, beside the method itself. Nothing in a round depends on a card."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from factorized_fl.core.views import Cost, Roles, Tensors

if TYPE_CHECKING:
    from factorized_fl.core.method import Method

CostFormula = Callable[["Method", Tensors, Roles], Cost]


def count_model(method: "Method", tensors: Tensors, roles: Roles) -> Cost:
    """The paper's formula for dense methods: every tensor of the model each way, running statistics included."""
    shares = any(map(method.shares, roles.values()))
    count = sum(tensor.numel() for tensor in tensors.values() if tensor.dim()) if shares else 0
    return Cost(count, count)


@dataclass(frozen=True)
class Card:
    """Title, source and cost of a method."""

    title: str = ""
    paper: str = "unpublished"
    parametrisation: str = "dense"
    local_step: str = "SGD"
    travels: str = ""
    mixing: str = ""
    control: str = ""  # the method whose control gives the same bits as this method's; empty: its own
    published_gb: float | None = None  # the cost column of the Factorized-FL paper, for 20 clients and 50 rounds
    cost: CostFormula = count_model  # numbers that the paper's cost formula counts, for one client and one round
    models_down: Callable[["Method"], int] = lambda method: 1  # models that a client receives in a round

    @property
    def row(self) -> tuple[str, str, str, str]:
        """The method's row in the table of methods."""
        return self.parametrisation, self.local_step, self.travels, self.mixing
