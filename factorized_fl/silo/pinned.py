"""The network of an installed package: an agreement pins its package, version and tensors, and no code travels.

Every party makes the network from its own installation. Frozen weights are loaded there and are never sent, so their
digests are compared.
"""

from dataclasses import replace
from hashlib import blake2b

import torch
from torch import nn

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.named import is_named
from factorized_fl.core.seeds import global_rng
from factorized_fl.core.stack import untied_state
from factorized_fl.nn.installed import InstalledModel, find_installed
from factorized_fl.nn.own import make_own_model
from factorized_fl.silo.agreement import Agreement, Kit
from factorized_fl.simulate.networks import blank_input

_OUTPUTS = 2  # outputs of the described network; only the classifier depends on their number


_FUNCTIONS = ("optimizer", "schedule", "augment", "loss")


def _refuse_functions(config: Config) -> None:
    """Raise UserError if an option names a function: an agreement, which another party wrote, could name any."""
    for option in (*_FUNCTIONS, "metrics"):
        value = getattr(config, option)
        for name in (value,) if isinstance(value, str) else value:
            if is_named(name):
                raise UserError(
                    f"{option} = '{name}' is a function, which other parties would have to call: "
                    f"between organisations use one of the names that docs/own-data-and-model.md lists."
                )


def pin_model(agreement: Agreement, config: Config) -> Agreement:
    """The agreement with the package, the version and the tensors of the configured network, if it is no built-in one.

    Raises UserError if no installed package declares the network, or if an option names a function.
    """
    _refuse_functions(config)
    if not config.has_own_model:
        return agreement
    found = find_installed(config.model)
    return replace(agreement, package=found.package, version=found.version, tensors=_tensors(found, config))


def check_model(kit: Kit) -> None:
    """Raise UserError, which names the difference, unless the installed network is that of the agreement.

    Raise UserError as well if an option names a function.
    """
    config, agreement = kit.config, kit.agreement
    _refuse_functions(config)
    if not config.has_own_model:
        return
    found, wanted = find_installed(config.model), f"{agreement.package} {agreement.version}"
    if (found.package, found.version) != (agreement.package, agreement.version):
        raise UserError(
            f"The agreement of {agreement.name} names {config.model} of {wanted}, and {found.package} {found.version} "
            f'is installed here: pip install "{agreement.package}=={agreement.version}".'
        )
    ours, theirs = (
        {entry.partition(" ")[0]: entry for entry in each} for each in (_tensors(found, config), agreement.tensors)
    )
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            here, there = (each.get(name, f"{name} missing").partition(" ")[2] for each in (ours, theirs))
            raise UserError(
                f"The tensor '{name}' of {config.model} is {here} here and {there} in the agreement of "
                f"{agreement.name}: install the same build of {wanted}, with the same weights."
            )


def _tensors(found: InstalledModel, config: Config) -> tuple[str, ...]:
    """One line for each tensor of the network: name, type, shape, and for frozen ones a digest of the values."""
    example = blank_input(config, config.channels)
    with global_rng(config.seed, "model"):
        model = make_own_model(found.factory(), found.name, example, _OUTPUTS, "all sites")
    return tuple(_line(model, name, tensor) for name, tensor in untied_state(model).items())


def _line(model: nn.Module, name: str, tensor: torch.Tensor) -> str:
    kind, shape = str(tensor.dtype).removeprefix("torch."), "x".join(map(str, tensor.shape)) or "scalar"
    parameter = dict(model.named_parameters()).get(name)
    if parameter is None or parameter.requires_grad:
        return f"{name} {kind} {shape}"
    values = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{name} {kind} {shape} frozen {blake2b(values, digest_size=8).hexdigest()}"
