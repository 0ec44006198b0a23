"""How many sites FLARE serves at once.

By itself FLARE accepts 100 connections, because each takes a thread of a pool of 100, and it works on 64 questions at
a time. The coordinator holds the question of every site that waits, so both limits have to follow the number of sites.
"""

from typing import Any

from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver
from nvflare.fuel.f3.streaming import stream_utils

_SPARE = 100  # threads for connections that are lost or refused, and not yet closed


def serve_sites(sites: int) -> None:
    """Let FLARE serve so many sites at once in this process, before it listens. Threads are made when needed."""
    threads = 2 * sites + _SPARE
    for pool in (stream_utils.stream_thread_pool, stream_utils.callback_thread_pool):
        pool._max_workers = max(pool._max_workers, threads)
    begin = GrpcDriver.__init__

    def begin_with_room(driver: Any) -> None:
        begin(driver)
        driver.max_workers = max(driver.max_workers, threads)

    GrpcDriver.__init__ = begin_with_room
