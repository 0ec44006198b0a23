"""Inputs as a network receives them: images are scaled, normalised and augmented, other inputs are unchanged."""

from collections.abc import Callable

import torch
from torch import Tensor

from factorized_fl.core.errors import UserError
from factorized_fl.core.named import reason_of
from factorized_fl.tasks.augment import augment, normalise

# Augmentation of the caller: a batch, images as floats from 0 to 1, and a generator for random numbers -> a batch.
OwnAugment = Callable[[Tensor, torch.Generator], Tensor]


class Inputs:
    """The pool of all clients' inputs on one device.

    Args:
        pool: uint8 images [N, C, H, W], or with `arrays` floats or whole numbers [N, ...].
        mean: of the channels of images in 0 .. 1, to subtract.
        std: of the same, to divide by.
        arrays: whether inputs reach the network as they are.
        own: the caller's augmentation with its name, or None.
    """

    def __init__(
        self, pool: Tensor, mean: Tensor, std: Tensor, arrays: bool, own: tuple[str, OwnAugment] | None = None
    ) -> None:
        self.pool, self.mean, self.std, self.arrays, self.own = pool, mean, std, arrays, own
        self.channels_last = not arrays  # the order in memory; it makes a step of ResNet-9 on a CPU 1.4 times as fast

    def plain(self, chosen: Tensor) -> Tensor:
        """Return the inputs at the positions as they are tested: not augmented."""
        return self._ready(self._floats(chosen))

    def augmented(self, chosen: Tensor, draws: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return the inputs at the positions as they are trained on.

        `draws` are those of the authors' augmentation, `generator` is for the caller's. Raise UserError if the caller's
        function fails or changes the shape of a batch.
        """
        if draws is not None:
            device = self.pool.device
            return self._ready(augment(self.pool[chosen.to(device)], draws.to(device)))
        if self.own is None:
            return self.plain(chosen)
        name, function = self.own
        given = self._floats(chosen)
        try:
            found = function(given.clone(), generator) if generator is not None else given
        except Exception as error:  # foreign code may raise any error
            raise UserError(f"The augmentation {name} fails for {list(given.shape)} ({reason_of(error)}).") from error
        if not isinstance(found, Tensor) or found.shape != given.shape or found.dtype != given.dtype:
            kind = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            wanted = f"{given.dtype} {list(given.shape)}"
            raise UserError(f"The augmentation {name} returns {kind} for {wanted}: return a batch of the same shape.")
        return self._ready(found)

    def _floats(self, chosen: Tensor) -> Tensor:
        """Images scaled to 0 .. 1, other inputs unchanged."""
        found = self.pool[chosen.to(self.pool.device)]
        return found if self.arrays else found.float() / 255

    def _ready(self, inputs: Tensor) -> Tensor:
        """Images normalised, in the order in memory that was chosen."""
        found = inputs if self.arrays else normalise(inputs, self.mean, self.std)
        return found.contiguous(memory_format=torch.channels_last) if self.channels_last else found
