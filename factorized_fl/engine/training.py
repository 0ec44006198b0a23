"""The choices of local training that are the same for all methods, such as optimiser, schedule and augmentation."""

from dataclasses import dataclass

import torch

from factorized_fl.core.views import Tensors
from factorized_fl.engine.optimizers import Choice
from factorized_fl.engine.schedules import Schedule, constant
from factorized_fl.tasks.inputs import OwnAugment

_TINY = 1e-6  # keeps a gradient of zero finite, as in torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True)
class Training:
    """The choices of a run that are the same for all methods."""

    optimizer: Choice
    schedule: Schedule = constant
    clip: float = 0.0  # largest norm of a gradient; 0: no limit
    ema: float = 0.0  # share of the average that remains after a step; 0: no averages
    augment: tuple[str, OwnAugment] | None = None  # the caller's, with its name

    @property
    def differs(self) -> str | None:
        """The first choice that is not the default, which the fast engine does not know; None if there is none."""
        other = {
            "the optimizer": self.optimizer.build is not None,
            "the schedule": self.schedule is not constant,
            "clip_norm": self.clip > 0,
            "ema": self.ema > 0,
            "the augmentation": self.augment is not None,
        }
        return next((name for name, differs in other.items() if differs), None)


def clipped(gradient: Tensors, largest: float) -> Tensors:
    """Return a gradient scaled down to a norm over all parameters of at most `largest`; 0 leaves it as it is."""
    if not largest:
        return gradient
    norm = torch.stack([torch.linalg.vector_norm(g) for g in gradient.values()]).norm()
    factor = (largest / (norm + _TINY)).clamp(max=1.0)
    return {name: g * factor for name, g in gradient.items()}
