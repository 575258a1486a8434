"""Network: a TCP path on this machine whose packets can be lost, delayed and held back in one direction.

A TUN device with two addresses: this program reads each packet to the far address and sends it back to the near one as if from
the far one. So the kernel's own TCP runs over a bad network, without a second machine or netem. Needs root. Owned by one event
loop. Knows ports, nothing of their use.
"""

import asyncio
import fcntl
import os
import random
import struct
import subprocess
from dataclasses import dataclass
from typing import Literal

Way = Literal["there", "back"]
"""From the side that connects to the side that listens, and the other way."""

BOTH: frozenset[Way] = frozenset(("there", "back"))

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_MTU = 8192
_TCP = 6
_PORTS = struct.Struct("!HH")


@dataclass
class Weather:
    """What happens to the packets of one port.

    Attributes:
        lost_share: of the packets, both ways.
        max_delay_s: each packet comes up to so much later, and so out of order.
        closed: ways on which nothing passes.
    """

    lost_share: float = 0.0
    max_delay_s: float = 0.0
    closed: frozenset[Way] = frozenset()


class Network:
    """The path. `near` is where servers listen, `far` what clients connect to; both with the same ports."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        request = fcntl.ioctl(self._fd, _TUNSETIFF, struct.pack("16sH22x", b"tetchaos%d", _IFF_TUN_NO_PI))
        device = request[:16].rstrip(b"\0").decode()
        number = int(device.removeprefix("tetchaos"))
        self.near, self.far = f"10.213.{number}.1", f"10.213.{number}.2"
        self._near_bytes, self._far_bytes = (bytes(map(int, address.split("."))) for address in (self.near, self.far))
        self._weather: dict[int, Weather] = {}
        self._rng = random.Random(number)
        subprocess.run(["ip", "address", "add", f"{self.near}/30", "dev", device], check=True)
        subprocess.run(["ip", "link", "set", device, "up", "mtu", str(_MTU)], check=True)

    def open(self) -> None:
        """Begin to carry packets."""
        asyncio.get_running_loop().add_reader(self._fd, self._carry_all)

    def close(self) -> None:
        """Remove the device, and with it every connection over it."""
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1

    def weather(self, port: int) -> Weather:
        """Return what happens to the packets of a port that somebody listens on; to be changed."""
        return self._weather.setdefault(port, Weather())

    def _carry_all(self) -> None:
        while True:
            try:
                packet = os.read(self._fd, _MTU)
            except BlockingIOError:
                return
            self._carry(packet)

    def _carry(self, packet: bytes) -> None:
        if packet[0] >> 4 != 4 or packet[9] != _TCP or packet[16:20] != self._far_bytes:
            return  # what the system says by itself to any new device
        # Sums over addresses do not know their order: checksums stay right.
        turned = packet[:12] + packet[16:20] + packet[12:16] + packet[20:]
        weather, way = self._conditions(packet)
        if way in weather.closed or self._rng.random() < weather.lost_share:
            return
        if weather.max_delay_s:
            delay_s = self._rng.uniform(0, weather.max_delay_s)
            asyncio.get_running_loop().call_later(delay_s, self._deliver, turned)
        else:
            self._deliver(turned)

    def _conditions(self, packet: bytes) -> tuple[Weather, Way]:
        source, target = _PORTS.unpack_from(packet, (packet[0] & 15) * 4)
        if target in self._weather:
            return self._weather[target], "there"
        return self._weather.get(source, _FAIR), "back"

    def _deliver(self, packet: bytes) -> None:
        if self._fd >= 0:
            os.write(self._fd, packet)


_FAIR = Weather()
