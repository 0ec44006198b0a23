"""The schedule of clients over lanes: a lane starts its next client as soon as the previous one is finished."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

# Milliseconds per client step, by the number of lanes (results/performance/client-step-lanes.json).
COST = {2: 1.39, 4: 1.26, 5: 1.23, 10: 1.18}


@dataclass(frozen=True)
class Stay:
    """A client's time in a lane: steps `first` to `end` - 1."""

    client: int
    lane: int
    first: int
    end: int


def schedule(steps: Mapping[int, int], lanes: int) -> list[Stay]:
    """Return a stay for each client of `steps`, which maps clients to numbers of steps.

    Clients are taken in the order of decreasing steps; each goes to the lane that becomes free first.
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
    """Return the number of lanes that costs least for clients with these numbers of steps.

    With more lanes a step of a client is faster, but a lane that is idle at the end costs as much as a busy one.
    """

    def cost(lanes: int) -> float:
        longest = max(stay.end for stay in schedule(dict(enumerate(steps)), lanes))
        return longest * lanes * COST[lanes]

    return min((lanes for lanes in COST if lanes <= len(steps)), key=cost, default=1)
