"""Rank-one plus sparse weights of clients that are matched by statistics of their images."""

from dataclasses import dataclass

import torch
from torch import nn

from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import FINGERPRINT
from factorized_fl.core.method import Normal
from factorized_fl.core.options import option
from factorized_fl.core.roles import find_head, layers, layers_under
from factorized_fl.core.views import Roles, Tensors
from factorized_fl.methods.factorized import Factorized
from factorized_fl.methods.fingerprints import (
    blur,
    describe_images,
    describe_privately,
    first_layer,
    make_room,
    plausible,
)


@dataclass(frozen=True)
class FactorizedByImages(Factorized):
    """Clients are matched by statistics of their images."""

    blur: float = option(0.0, "Gaussian noise on the statistics, in units of their spread between images", low=0)
    clip: float = option(10.0, "limit of the statistics, in the same units", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blur and not self.looks_at_images:
            raise UserError(f"blur = {self.blur} has no effect where no statistics travel: set match=statistics.")

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """Factorises the model and adds a buffer for the statistics of the client's images.

        Raises UserError if these would be numbers of the outputs of a classifier that clients do not share.
        """
        if self.looks_at_images and not labels_agree and layers_under(model, find_head(model)) == [*layers(model)]:
            raise UserError(
                f"{self.name} compares images by a layer before the classifier, but the network has none: put a layer "
                "before it, or choose fedavg or another method."
            )
        model = super().parametrize(model, generator, labels_agree)
        return make_room(model) if self.looks_at_images else model

    @property
    def looks_at_images(self) -> bool:
        """True: the statistics are computed once, before training."""
        return True

    def look(
        self, model: nn.Module, tensors: Tensors, images: torch.Tensor, labels: torch.Tensor, classes: int
    ) -> torch.Tensor:
        """The statistics of the images, as seen through the untrained first layer."""
        return describe_images(first_layer(model.eval(), tensors, images), labels, classes)

    @property
    def looks_privately(self) -> bool:
        """True: noise is added to mean directions of the images' moments."""
        return True

    def look_privately(
        self, model: nn.Module, tensors: Tensors, images: torch.Tensor, noise: float, normal: Normal
    ) -> torch.Tensor:
        """Noisy statistics of the images, as seen through the untrained first layer, without regard to labels."""
        return describe_privately(first_layer(model.eval(), tensors, images), noise, normal)

    def plausible(self, fingerprint: torch.Tensor) -> bool:
        """Whether no log-variance is extremely large or small."""
        return plausible(fingerprint)

    def hide(self, fingerprint: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """The fingerprint with noise, if `blur` is above zero."""
        return blur(fingerprint, self.blur, self.clip, generator) if self.blur else fingerprint

    def fingerprint(self, tensors: Tensors, roles: Roles) -> torch.Tensor | None:
        """The statistics of the client's images."""
        return tensors[FINGERPRINT]
