"""How many connections FLARE's server accepts and how many questions it works on at a time: both are printed.

python -m tests.silo.many_connections ASKED [SITES]     with SITES, after making room for so many sites
"""

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import grpc
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo, Mode
from nvflare.fuel.f3.drivers.grpc.streamer_pb2 import Frame
from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import StreamerStub
from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver
from nvflare.fuel.f3.streaming.stream_utils import callback_thread_pool

from factorized_fl.silo.transport.flare.capacity import serve_sites
from tests.silo.processes import free_port

WAIT = 2.0  # seconds without news after which nothing more is expected


class Counter:
    """Counts the different things that arrive."""

    def __init__(self) -> None:
        self.found: set[Any] = set()
        self.changed = threading.Condition()

    def add(self, thing: Any) -> None:
        with self.changed:
            self.found.add(thing)
            self.changed.notify_all()

    def after(self, wanted: int) -> int:
        """The count, once it is as wanted or has not grown for a while."""
        with self.changed:
            before = -1
            while before < len(self.found) < wanted:
                before = len(self.found)
                self.changed.wait(WAIT)
            return len(self.found)

    def state_change(self, connection: Any) -> None:
        """Called by FLARE for a new connection."""
        connection.register_frame_receiver(self)

    def process_frame(self, data: bytes) -> None:
        """Called by FLARE for what a connection sends."""
        self.add(data)


def count_connections(asked: int) -> int:
    """Open so many streams; returns how many of them the server serves at once."""
    port, driver, counter, until = free_port(), GrpcDriver(), Counter(), threading.Event()
    driver.register_conn_monitor(counter)
    params = {"host": "127.0.0.1", "port": port, "secure": False}
    connector = ConnectorInfo("server", driver, params, Mode.PASSIVE, 0, 0, False, threading.Event())
    threading.Thread(target=driver.listen, args=(connector,), daemon=True).start()

    def frames(number: int) -> Iterator[Frame]:
        yield Frame(seq=1, data=str(number).encode())
        until.wait()

    stub = StreamerStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
    streams = [stub.Stream(frames(number), wait_for_ready=True) for number in range(asked)]
    return counter.after(len(streams))


def count_questions(asked: int) -> int:
    """Begin to answer so many questions; returns how many of them are held at once."""
    counter, until = Counter(), threading.Event()

    def hold(number: int) -> None:
        counter.add(number)
        until.wait()

    for number in range(asked):
        callback_thread_pool.submit(hold, number)
    return counter.after(asked)


if __name__ == "__main__":
    wanted = int(sys.argv[1])
    if sys.argv[2:]:
        serve_sites(int(sys.argv[2]))
    print(count_connections(wanted), count_questions(wanted), flush=True)
    os._exit(0)  # the threads above wait for ever
