"""Features in place of inputs: the outputs of a network's frozen first part are computed once for every input."""

import copy
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from factorized_fl.core.frozen import frozen_modules, mark_of_frozen
from factorized_fl.data.cache import cache_folder
from factorized_fl.data.scenarios import Scenario

_BATCH = 64
_PROBE = 4  # inputs on which the network must give the same outputs with features as without
_LARGEST = 2**32  # bytes of features; more are not kept in memory
_WORTH_A_FILE = 2.0  # seconds of work, below which features are not written to disk

Prepare = Callable[[Tensor], Tensor]


@torch.no_grad()
def with_features(
    scenario: Scenario, models: Mapping[int, nn.Module], prepare: Prepare, device: torch.device
) -> tuple[Scenario, dict[int, nn.Module]]:
    """Return a scenario whose inputs are features, and the rest of each network, if that gives the same outputs.

    `prepare` makes network inputs of those in the scenario. The frozen modules that a network calls first, each with
    nothing but the output of the one before, are replaced by identities in copies of the networks that share all
    tensors. Inputs and networks are returned as they are if there is no such module, if the network uses its input in
    other places, or if the features are too large.
    """
    found = dict(models)
    while name := _first_frozen(found, prepare(scenario.images[:_PROBE]).to(device)):
        part = next(iter(found.values())).get_submodule(name)
        rest = {outputs: _without(model, name) for outputs, model in found.items()}
        features = _features(part, name, scenario, prepare, device)
        if features is None or not _same(found, rest, prepare(scenario.images[:_PROBE]).to(device), features[:_PROBE]):
            break
        scenario, found, prepare = replace(scenario, images=features, arrays=True), rest, lambda inputs: inputs
    return scenario, found


def _first_frozen(models: Mapping[int, nn.Module], probe: Tensor) -> str:
    """The name of the frozen module that is called once and with exactly the network's input; empty if none is."""
    model = next(iter(models.values())).eval()
    seen: dict[str, list[bool]] = {}
    hooks = []
    for name, module in frozen_modules(model).items():
        if name:

            def look(module: nn.Module, args: tuple[object, ...], named: dict[str, object], name: str = name) -> None:
                seen.setdefault(name, []).append(len(args) == 1 and args[0] is probe and not named)

            hooks.append(module.register_forward_pre_hook(look, with_kwargs=True))
    try:
        model(probe)
    finally:
        for hook in hooks:
            hook.remove()
    return next((name for name, calls in seen.items() if calls == [True]), "")


def _without(model: nn.Module, name: str) -> nn.Module:
    """A copy of the network with an identity in place of a module; all tensors are shared with the network."""
    tensors = [*model.parameters(), *model.buffers()]
    found = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    parent, _, leaf = name.rpartition(".")
    setattr(found.get_submodule(parent), leaf, nn.Identity())
    return found


def _same(whole: Mapping[int, nn.Module], rest: Mapping[int, nn.Module], inputs: Tensor, features: Tensor) -> bool:
    for outputs, model in whole.items():
        try:
            given = rest[outputs].eval()(features.to(inputs.device))
        except Exception:  # the rest of the network needs the input itself
            return False
        if not torch.allclose(given, model.eval()(inputs), rtol=1e-4, atol=1e-5):
            return False
    return True


def _features(part: nn.Module, name: str, scenario: Scenario, prepare: Prepare, device: torch.device) -> Tensor | None:
    """The outputs of a frozen module for all inputs, from a file if they were computed before; None if too large."""
    part = part.to(device).eval()

    def compute(inputs: Tensor) -> Tensor:
        return part(prepare(inputs).to(device)).cpu()

    try:
        probe = compute(scenario.images[:_PROBE])
    except Exception:  # of foreign code; the network itself computes its outputs and reports its failures
        return None
    size = probe[:1].numel() * probe.element_size() * len(scenario.images)
    if len(probe) != len(scenario.images[:_PROBE]) or not probe.is_floating_point() or size > _LARGEST:
        return None
    key = sha256(f"{name} {part} {mark_of_frozen(part)} {list(scenario.images.shape)} {scenario.mean}".encode())
    key.update(scenario.images.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    file = cache_folder() / "features" / f"{key.hexdigest()}.safetensors"
    with suppress(OSError, SafetensorError, KeyError):
        stored = safetensors.torch.load_file(file)["features"]
        whole = (len(scenario.images), *probe.shape[1:])
        if stored.shape == whole and torch.allclose(stored[:_PROBE], probe, rtol=1e-3, atol=1e-4):
            return stored  # the code of the module may have changed under the same weights
    began = time.monotonic()
    features = torch.cat([compute(some) for some in scenario.images.split(_BATCH)])
    if time.monotonic() - began > _WORTH_A_FILE:
        with suppress(OSError, SafetensorError):  # without a file they are computed again in the next run
            file.parent.mkdir(parents=True, exist_ok=True)
            handle, part_name = tempfile.mkstemp(dir=file.parent)
            os.close(handle)
            safetensors.torch.save_file({"features": features}, part_name)
            os.replace(part_name, file)
    return features
