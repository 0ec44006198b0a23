"""Local training and evaluation. Every engine gives the reference engine's results."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from factorized_fl.config import Config
from factorized_fl.core.roles import Role
from factorized_fl.data.scenarios import Scenario
from factorized_fl.methods import Method


@dataclass(frozen=True)
class Task:
    """What every engine needs to know of a federation; none of it changes while a run goes on."""

    config: Config
    method: Method
    scenario: Scenario
    models: Mapping[int, nn.Module]  # one for each number of classes, parametrised
    roles: Mapping[str, Role]
    shared: frozenset[str]  # the names that travel
    device: torch.device
