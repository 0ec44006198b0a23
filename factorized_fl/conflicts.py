"""Options of a run that exclude each other under encryption or under a privacy budget."""

from typing import TYPE_CHECKING, Any

from factorized_fl.core.errors import UserError
from factorized_fl.core.named import is_named

if TYPE_CHECKING:
    from factorized_fl.core.method import Method

DELTA, CLIP = 1e-5, 1.0  # defaults of a run's options


def refuse_unencryptable(config: Any, method: "Method") -> None:
    """Raise a UserError if encrypted aggregation cannot serve this run."""
    from factorized_fl.methods import encryptable

    if config.oracle != "none":
        raise UserError(
            f"oracle = '{config.oracle}' reveals to the server what encryption hides: use protect = 'none'."
        )
    if config.robust != "none":
        raise UserError(f"robust = '{config.robust}' reads tensors that encryption hides: use protect = 'none'.")
    if config.align != "off":
        raise UserError(f"align = '{config.align}' sends tensors that are not encrypted: use protect = 'none'.")
    if method.reads_tensors:
        raise UserError(
            f"The weights of {method.name} are computed from the shared tensors, which protect = 'encrypt' hides "
            f"from the server. Methods that work: {', '.join(encryptable())}."
        )


def refuse_uncovered(config: Any, method: "Method") -> None:
    """Raise a UserError if an option uses training images in a way that the privacy budget does not cover."""
    from factorized_fl.methods import coverable

    if not config.privacy_epsilon:
        for name, default in (("privacy_delta", DELTA), ("privacy_clip", CLIP)):
            if (value := getattr(config, name)) != default:
                raise UserError(f"{name} = {value:g} has no effect without a budget: set privacy_epsilon.")
        return
    if config.oracle != "none":
        raise UserError(f"oracle = '{config.oracle}' uses images without noise: leave it or privacy_epsilon out.")
    if config.align != "off":
        raise UserError(
            f"align = '{config.align}' sends statistics or classifiers of classes that privacy_epsilon does not cover: "
            "use align = 'off'."
        )
    if config.loss == "balanced-cross-entropy" or config.class_weights:
        raise UserError(
            "Weights of classes make one example count more than another, which privacy_epsilon does not cover: use "
            "loss = 'cross-entropy' without class_weights."
        )
    if is_named(config.augment):
        raise UserError(
            f"augment = '{config.augment}' may mix the examples of a batch, so privacy_epsilon cannot bound the "
            "influence of one: use augment = 'none' or 'paper'."
        )
    if method.reads_images or (method.looks_at_images and not method.looks_privately):
        raise UserError(
            f"{method.name} uses images otherwise than in gradient steps, which privacy_epsilon does not cover. "
            f"Methods that work: {', '.join(coverable())}."
        )
    if getattr(method, "blur", 0.0):
        raise UserError("blur has no effect with privacy_epsilon, whose noise takes its place: leave blur out.")
