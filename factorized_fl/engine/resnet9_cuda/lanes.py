"""Which client trains in which lane, and when: a lane takes the next client as soon as one is finished."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

# Milliseconds of a client step by the number of lanes (results/performance/client-step-lanes.json).
COST = {2: 1.39, 4: 1.26, 5: 1.23, 10: 1.18}


@dataclass(frozen=True)
class Stay:
    """A client in a lane, from one step on to before another."""

    client: int
    lane: int
    first: int
    end: int


def plan(steps: Mapping[int, int], lanes: int) -> list[Stay]:
    """The stays of the clients, which take so many steps.

    The client with the most steps comes first, each to the lane that is free first.
    """
    stays: list[Stay] = []
    free = [(0, lane) for lane in range(lanes)]
    heapify(free)
    for client in sorted(steps, key=lambda k: (-steps[k], k)):
        first, lane = free[0]
        end = first + steps[client]
        heapreplace(free, (end, lane))
        stays.append(Stay(client, lane, first, end))
    return stays


def choose_lanes(steps: Sequence[int]) -> int:
    """How many lanes cost least for clients with so many steps each.

    More lanes are faster, but those left idle while the last clients are at work cost as much as busy ones.
    """

    def cost(lanes: int) -> float:
        longest = max(stay.end for stay in plan(dict(enumerate(steps)), lanes))
        return longest * lanes * COST[lanes]

    return min((lanes for lanes in COST if lanes <= len(steps)), key=cost, default=1)
