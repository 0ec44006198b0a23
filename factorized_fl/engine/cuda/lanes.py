"""Which client trains in which lane, and when: a lane takes the next client as soon as one is finished."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

# Milliseconds of a client step by the number of graphs that run at a time and their lanes
# (results/performance/client-step-lanes.json). Two graphs are 5% faster step by step (client-step-streams.json); they
# join this table when whole rounds are, too.
COST = {(1, 2): 1.39, (1, 4): 1.26, (1, 5): 1.23, (1, 10): 1.18}


@dataclass(frozen=True)
class Stay:
    """A client in a lane, from one step on to before another."""

    client: int
    lane: int
    first: int
    end: int


def plan(steps: Mapping[int, int], graphs: int, lanes: int) -> list[list[Stay]]:
    """Each graph's stays of the clients, which take so many steps.

    The client with the most steps comes first, each to the lane that is free first.
    """
    stays: list[list[Stay]] = [[] for _ in range(graphs)]
    free = [(0, place) for place in range(graphs * lanes)]
    heapify(free)
    for client in sorted(steps, key=lambda k: (-steps[k], k)):
        first, place = free[0]
        end = first + steps[client]
        heapreplace(free, (end, place))
        stays[place % graphs].append(Stay(client, place // graphs, first, end))
    return [stays_of_one for stays_of_one in stays if stays_of_one]


def choose_lanes(steps: Sequence[int]) -> tuple[int, int]:
    """How many graphs and lanes cost least for clients with so many steps each.

    More lanes are faster, but those left idle while the last clients are at work cost as much as busy ones.
    """

    def cost(graphs: int, lanes: int) -> float:
        longest = max(stay.end for stays in plan(dict(enumerate(steps)), graphs, lanes) for stay in stays)
        return longest * graphs * lanes * COST[graphs, lanes]

    fitting = [(graphs, lanes) for graphs, lanes in COST if graphs * lanes <= len(steps)]
    return min(fitting, key=lambda pair: cost(*pair), default=(1, 1))
