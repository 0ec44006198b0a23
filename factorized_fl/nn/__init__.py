"""Parametrisations of weights, and models."""

from factorized_fl.core.roles import Role, last_body_v
from factorized_fl.nn.description import describe
from factorized_fl.nn.factorized import RankOneSparse, factorize, fold, set_threshold
from factorized_fl.nn.models import build_model

__all__ = ["RankOneSparse", "Role", "build_model", "describe", "factorize", "fold", "last_body_v", "set_threshold"]
