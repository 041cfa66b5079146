"""Real traffic through the wire, payloads compared."""

from __future__ import annotations

import socket

import pytest

from faults.impairment import Impairment
from tests.wire import traffic
from tests.wire.lab import Lab, StartWire, inside

pytestmark = [pytest.mark.live, pytest.mark.needs("root", "raw-sockets")]

FAMILIES = (socket.AF_INET, socket.AF_INET6)
OFFLOADS = pytest.mark.parametrize("offloads", [True, False], ids=["offloads on", "offloads off"])


@pytest.mark.needs("ping")
@OFFLOADS
async def test_ping_tcp_udp_and_ipv6_pass(pair: Lab, offloads: bool, start_wire: StartWire) -> None:
    """T33: a relay that forgets unfinished checksums passes the ping and nothing else."""
    mtu = pair.mtu
    if not offloads:
        pair.switch_off_offloads()
    async with start_wire(pair) as wire:
        for family in FAMILIES:
            destination = traffic.address(pair, "b", family)
            assert await traffic.ping(pair, "a", destination, "-s", str(mtu - 48), "-M", "do") == 0
            traffic.udp_exchange(pair, "a", "b", family, [1, 100, mtu - 48, 20_000])
            await traffic.tcp_transfer(pair, "a", "b", family, 2_000_000)
            await traffic.tcp_transfer(pair, "b", "a", family, 300_001)
        stats = await wire.stats()
    assert stats.overrun == stats.undeliverable == stats.oversized == stats.dropped_by_impairment == 0
    largest = stats.bytes / stats.frames
    assert largest > 2 * mtu if offloads else largest < mtu + 14 + 10


async def test_frames_only_reach_their_destination(lab: Lab, start_wire: StartWire) -> None:
    async with start_wire(lab) as wire:
        await traffic.tcp_transfer(lab, "a", "b", socket.AF_INET, 500_000)
        lines = (await wire.stats()).lines
    assert lines["b--s/b-to-a"].bytes > 500_000
    assert lines["c--s/b-to-a"].bytes < 50_000


async def test_udp_segmentation_offload_passes(lab: Lab, start_wire: StartWire) -> None:
    udp_segment = 103
    async with start_wire(lab) as wire:
        with traffic.udp_socket(lab, "a") as sender, traffic.udp_socket(lab, "b") as receiver:
            sender.setsockopt(socket.IPPROTO_UDP, udp_segment, 1000)
            payload = bytes(range(250)) * 200
            sender.sendto(payload, (lab.ipv4("b"), traffic.PORT))
            received = [receiver.recv(65536) for _ in range(50)]
        assert b"".join(received) == payload
        await wire.impair("b--s", "b-to-a", {"duplicate": 1.0})
        with traffic.udp_socket(lab, "a") as sender, traffic.udp_socket(lab, "b") as receiver:
            sender.setsockopt(socket.IPPROTO_UDP, udp_segment, 1000)
            sender.sendto(payload, (lab.ipv4("b"), traffic.PORT))
            received = [receiver.recv(65536) for _ in range(100)]
    assert b"".join(received[::2]) == b"".join(received[1::2]) == payload


async def test_tcp_passes_a_line_that_cuts_its_super_frames(lab: Lab, start_wire: StartWire) -> None:
    """A line that treats frames one by one cuts super-frames itself, and the receiving kernel takes the result."""
    async with start_wire(lab, Impairment(duplicate=0.3)) as wire:
        for family in FAMILIES:
            await traffic.tcp_transfer(lab, "a", "b", family, 1_000_000)
        stats = await wire.stats()
    assert stats.lines["a--s/a-to-b"].duplicated > 100
    assert stats.undeliverable == 0


async def test_vlan_tags_pass(lab: Lab, start_wire: StartWire) -> None:
    tagged = lab.mac("b") + lab.mac("a") + b"\x81\x00\x00\x2a\x88\xb5" + b"with a tag" + bytes(40)
    async with start_wire(lab):
        with packet_socket(lab, "a") as sender, packet_socket(lab, "b") as receiver:
            receiver.setsockopt(263, 8, 1)  # PACKET_AUXDATA: the tag comes beside the frame
            sender.send(tagged)
            while True:
                data, ancillary, _, _ = receiver.recvmsg(2000, 100)
                if data[14:24] == b"with a tag":
                    break
    assert int.from_bytes(ancillary[0][2][16:18], "little") == 0x2A


async def test_what_the_fabrics_own_kernel_sends_is_not_relayed(lab: Lab, start_wire: StartWire) -> None:
    frame = b"\xff" * 6 + bytes.fromhex("020000000099") + b"\x88\xb5" + b"from the fabric" + bytes(40)
    async with start_wire(lab):
        with packet_socket(lab, "a") as near, packet_socket(lab, "b") as far:
            with inside(lab.fabric):
                kernel = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
                kernel.bind((lab.attachments["a:eth1"], 0))
            with kernel:
                kernel.send(frame)
            assert holds(near, b"from the fabric")
            traffic.round_trip(lab, "a", "b")  # whatever was relayed has arrived before this
            far.setblocking(False)
            assert not holds(far, b"from the fabric")


def holds(receiver: socket.socket, text: bytes) -> bool:
    """Whether a frame with this text arrives, or, without blocking, has arrived."""
    while True:
        try:
            data = receiver.recv(2000)
        except BlockingIOError:
            return False
        if text in data:
            return True


def packet_socket(lab: Lab, node: str) -> socket.socket:
    with inside(lab.nodes[node]):
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        made.bind(("eth1", 3))
    made.settimeout(traffic.PATIENCE)
    return made
