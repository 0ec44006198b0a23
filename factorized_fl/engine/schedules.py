"""Learning-rate schedules: functions from the share of a run that is done, 0 to 1, to a factor on the learning rate.

A schedule depends on nothing but that share, so a resumed run continues with the same rates.
"""

import math
from collections.abc import Callable, Mapping

from factorized_fl.core.errors import UserError, unknown
from factorized_fl.core.named import Brought, brought_or_imported, is_named, reason_of

Schedule = Callable[[float], float]

_WARM_UP = 0.05  # share of the run in which the learning rate rises
_TRIED = 100  # parts of the run at whose ends a schedule is tried before the first round


def constant(done: float) -> float:
    """Return 1."""
    return 1.0


def half_cosine(done: float) -> float:
    """Return half a cosine wave from 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * done))


def linear(done: float) -> float:
    """Return a line from 1 to 0."""
    return 1 - done


def warm_up_cosine(done: float) -> float:
    """Return a line that rises to 1 in the first twentieth of the run, then half a cosine wave to 0."""
    if done < _WARM_UP:
        return max(done, 1e-3) / _WARM_UP
    return half_cosine((done - _WARM_UP) / (1 - _WARM_UP))


SCHEDULES: Mapping[str, Schedule] = {
    "constant": constant,
    "cosine": half_cosine,
    "linear": linear,
    "warm-up-cosine": warm_up_cosine,
}


def make_schedule(name: str, brought: Brought) -> Schedule:
    """Return a schedule by name, or the caller's, whose values are checked at every call.

    Raise UserError for an unknown name, or if the function does not return a finite number of at least 0 at any of a
    hundred points of the run.
    """
    if name in SCHEDULES:
        return SCHEDULES[name]
    if not is_named(name):
        raise unknown("schedule", name, SCHEDULES)
    function = brought_or_imported("schedule", name, brought)

    def checked(done: float) -> float:
        try:
            factor = float(function(done))
        except Exception as error:  # foreign code may raise any error
            raise UserError(f"The schedule {name} fails at {done:g} of the run ({reason_of(error)}).") from error
        if not (math.isfinite(factor) and factor >= 0):
            advice = "return a factor on the learning rate, a finite number of at least 0"
            raise UserError(f"The schedule {name} returns {factor:g} at {done:g} of the run: {advice}.")
        return factor

    for part in range(_TRIED + 1):
        checked(part / _TRIED)
    return checked
