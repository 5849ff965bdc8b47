"""A network of two machines whose wire can be harmed: this one, and one in a network namespace of its own.

Both ends are TUN devices. A thread carries the packets between them, delays and drops them. So real TCP connections
meet delay, loss, a partition, and a connection of which only one direction works. Needs the right to make a namespace.
"""

from __future__ import annotations

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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from tests.soak.summary import Impossible

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_PACKET_BYTES = 1 << 16
_IDLE_SECONDS = 0.2


@dataclass(frozen=True)
class Wire:
    """What happens to packets. Seconds of delay, and shares of packets that are lost on the way there and back."""

    delay: float = 0.0
    loss_there: float = 0.0
    loss_back: float = 0.0


WHOLE = Wire()
FAULTS = {
    "delay": Wire(delay=0.3),
    "loss": Wire(loss_there=0.2, loss_back=0.2),
    "partition": Wire(loss_there=1.0, loss_back=1.0),
    "half-open there": Wire(loss_there=1.0),
    "half-open back": Wire(loss_back=1.0),
}


class Link:
    def __init__(self, namespace: str, here: str, there: str) -> None:
        self.here, self.there = here, there
        """The addresses of both machines."""
        self.prefix = ("ip", "netns", "exec", namespace)
        """What starts a command on the other machine."""
        self.wire = WHOLE

    def carry(self, here: int, there: int, stopped: threading.Event) -> None:
        """Carry packets between the two devices until stopped."""
        chance = random.Random()
        due: list[tuple[float, int, int, bytes]] = []
        count = 0
        while not stopped.is_set():
            wait = max(0.0, min(due[0][0] - time.monotonic(), _IDLE_SECONDS)) if due else _IDLE_SECONDS
            for source in select.select([here, there], [], [], wait)[0]:
                packet, wire = os.read(source, _PACKET_BYTES), self.wire
                if chance.random() >= (wire.loss_there if source == here else wire.loss_back):
                    count += 1
                    target = there if source == here else here
                    heapq.heappush(due, (time.monotonic() + wire.delay, count, target, packet))
            while due and due[0][0] <= time.monotonic():
                _, _, target, packet = heapq.heappop(due)
                os.write(target, packet)


@contextmanager
def linked() -> Iterator[Link]:
    """Set up the other machine and the wire to it. Raise Impossible if this is not allowed here."""
    number = os.getpid()
    network = f"10.{128 + number // 256 % 100}.{number % 256}"
    name, here, there = f"hyp-soak-{number}", f"hs{number}a", f"hs{number}b"
    link = Link(name, f"{network}.1", f"{network}.2")
    stopped = threading.Event()
    with ExitStack() as stack:
        ends = [_open_device(each, stack) for each in (here, there)]
        _ip("netns", "add", name)
        stack.callback(_ip, "netns", "del", name)
        _ip("link", "set", there, "netns", name)
        for prefix, device, address in (((), here, link.here), (("-n", name), there, link.there)):
            _ip(*prefix, "addr", "add", f"{address}/24", "dev", device)
            _ip(*prefix, "link", "set", device, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        carrier = threading.Thread(target=link.carry, args=(*ends, stopped), name="wire", daemon=True)
        carrier.start()
        stack.callback(carrier.join)
        stack.callback(stopped.set)
        yield link


@contextmanager
def harmed(link: Link, fault: str) -> Iterator[None]:
    """Harm the wire for a while."""
    link.wire = replace(FAULTS[fault])
    try:
        yield
    finally:
        link.wire = WHOLE


def _open_device(name: str, stack: ExitStack) -> int:
    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        stack.callback(os.close, device)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN_NO_PI))
    except OSError as error:
        raise Impossible(f"no TUN device can be made: {error}") from error
    return device


def _ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Impossible(f"ip {' '.join(args)}: {done.stderr.strip()}")
