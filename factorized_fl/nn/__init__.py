"""Parametrisations of weights, and models."""

from factorized_fl.core.roles import Role, find_head, last_body_v, roles
from factorized_fl.nn.description import Description, describe
from factorized_fl.nn.factorized import RankOneSparse, factorize, fold, set_threshold
from factorized_fl.nn.models import build_model

__all__ = [
    "Description",
    "RankOneSparse",
    "Role",
    "build_model",
    "describe",
    "factorize",
    "find_head",
    "fold",
    "last_body_v",
    "roles",
    "set_threshold",
]
