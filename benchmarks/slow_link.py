"""Two network namespaces joined by a link with a delay, and with packets that are lost. Linux, as root.

A kernel without netem can still do this: each namespace has a TUN device, and a thread carries IP packets between the
two. TCP sees real delays and real losses, and resends as it would on a long line.
"""

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_LARGEST = 65_536  # bytes of a packet


@dataclass
class Link:
    """Both ends of a link, and what it carried."""

    near: str  # names of the namespaces
    far: str
    near_address: str = "10.77.0.1"
    far_address: str = "10.77.0.2"
    carried: int = 0  # packets
    lost: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def inside(self, end: str) -> list[str]:
        """The words before a command that run it in the namespace of one end."""
        return ["ip", "netns", "exec", end]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _tun(name: str, namespace: str, own: str, other: str) -> int:
    """The file of a TUN device with an address of its own in a namespace."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22s", name.encode(), _IFF_TUN | _IFF_NO_PI, b""))
    _ip("link", "set", name, "netns", namespace)
    _ip("-n", namespace, "addr", "add", own, "peer", other, "dev", name)
    for device in ("lo", name):
        _ip("-n", namespace, "link", "set", device, "up")
    return file


def _carry(link: Link, ends: tuple[int, int], one_way: float, loss: float, seed: int) -> None:
    """Carry packets between the two ends, each after a delay, except for a share that is lost."""
    draw, waiting, number = random.Random(seed), list[tuple[float, int, int, bytes]](), 0
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    while not link.ended.is_set():
        patience = min(0.2, max(0.0, waiting[0][0] - time.monotonic())) if waiting else 0.2
        for file in select.select(ends, [], [], patience)[0]:
            packet = os.read(file, _LARGEST)
            if draw.random() < loss:
                link.lost += 1
                continue
            number += 1
            heapq.heappush(waiting, (time.monotonic() + one_way, number, other[file], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, file, packet = heapq.heappop(waiting)
            os.write(file, packet)
            link.carried += 1


@contextmanager
def slow_link(round_trip: float = 0.2, loss: float = 0.05, seed: int = 1) -> Iterator[Link]:
    """Two namespaces; packets take half of `round_trip` seconds each way, and a share `loss` of them is lost."""
    link = Link(f"ffl-near-{os.getpid()}", f"ffl-far-{os.getpid()}")
    files: list[int] = []
    try:
        for namespace in (link.near, link.far):
            _ip("netns", "add", namespace)
        files.append(_tun(f"fn{os.getpid()}", link.near, link.near_address, link.far_address))
        files.append(_tun(f"ff{os.getpid()}", link.far, link.far_address, link.near_address))
        carrier = threading.Thread(target=_carry, args=(link, tuple(files), round_trip / 2, loss, seed), daemon=True)
        carrier.start()
        yield link
        link.ended.set()
        carrier.join()
    finally:
        link.ended.set()
        for file in files:
            os.close(file)
        for namespace in (link.near, link.far):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
