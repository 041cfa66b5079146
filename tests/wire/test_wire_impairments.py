"""Impairments, measured from outside on real traffic."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from faults.impairment import Impairment
from testbed.network.spec import A_TO_B, B_TO_A
from tests.wire import traffic
from tests.wire.lab import Lab, StartWire

pytestmark = [pytest.mark.live, pytest.mark.needs("root", "raw-sockets")]

MS = 1_000_000
TOLERANCE = 2 * MS
"""What a shared machine may add to the best of a few measurements: process switches at both ends."""


async def test_directions_have_their_own_delay_and_others_none(lab: Lab, start_wire: StartWire) -> None:
    """T22"""
    async with start_wire(lab) as wire:
        traffic.round_trip(lab, "a", "b")
        await wire.impair("a--s", A_TO_B, {"delay": 40 * MS})
        await wire.impair("a--s", B_TO_A, {"delay": 10 * MS})
        assert 40 * MS <= traffic.one_way(lab, "a", "b") < 40 * MS + TOLERANCE
        assert 10 * MS <= traffic.one_way(lab, "b", "a") < 10 * MS + TOLERANCE
        assert 50 * MS <= traffic.round_trip(lab, "a", "b") < 50 * MS + TOLERANCE
        assert traffic.round_trip(lab, "c", "d") < TOLERANCE


async def test_impair_merges_and_restore_gives_back_what_was_declared(lab: Lab, start_wire: StartWire) -> None:
    """T25"""
    declared = Impairment(delay=5 * MS)
    async with start_wire(lab, declared) as wire:
        await wire.impair("a--s", A_TO_B, {"loss": 1.0})
        await wire.impair("a--s", A_TO_B, {"delay": 30 * MS})
        assert await wire.impairment("a--s", A_TO_B) == Impairment(delay=30 * MS, loss=1.0)
        await wire.impair("a--s", A_TO_B, {"loss": 0.0})
        assert 35 * MS <= traffic.one_way(lab, "a", "b") < 35 * MS + TOLERANCE
        await wire.restore("a--s", A_TO_B, ["delay", "loss"])
        assert await wire.impairment("a--s", A_TO_B) == declared
        assert 10 * MS <= traffic.one_way(lab, "a", "b") < 10 * MS + TOLERANCE


@pytest.mark.parametrize("offloads", [True, False], ids=["offloads on", "offloads off"])
async def test_one_percent_is_lost_of_mtu_frames(offloads: bool, lab: Lab, start_wire: StartWire) -> None:
    """T34"""
    if not offloads:
        lab.switch_off_offloads()
    async with start_wire(lab) as wire:
        await wire.impair("b--s", B_TO_A, {"loss": 0.01})
        await traffic.tcp_transfer(lab, "a", "b", socket.AF_INET, 8_000_000)
        line = (await wire.stats()).lines["b--s/b-to-a"]
    segments = 8_000_000 / 1448
    assert segments < line.frames < segments * 1.2
    assert line.lost / line.frames == pytest.approx(0.01, rel=0.5)


async def test_loss_is_what_the_receiver_misses(lab: Lab, start_wire: StartWire) -> None:
    """T26: half a per cent is not nothing."""
    async with start_wire(lab, Impairment()) as wire:
        await wire.impair("b--s", B_TO_A, {"loss": 0.005})
        arrived = traffic.blast(lab, "a", "b", 8000, size=200)
        lost = (await wire.stats()).lines["b--s/b-to-a"].lost
    missing = 8000 - len(arrived)
    assert 10 < missing < 80
    assert 0 <= lost - missing < 5  # the wire may have lost a frame of the kernel's own too


async def test_zero_is_none_and_one_is_all(lab: Lab, start_wire: StartWire) -> None:
    """T26"""
    async with start_wire(lab) as wire:
        assert len(traffic.blast(lab, "a", "b", 1000, size=100)) == 1000
        await wire.impair("a--s", A_TO_B, {"loss": 1.0})
        assert traffic.blast(lab, "a", "b", 500, size=100) == set()
        await wire.impair("a--s", A_TO_B, {"loss": 0.0})
        assert len(traffic.blast(lab, "a", "b", 1000, size=100)) == 1000


async def test_an_established_flow_is_hit_at_once(lab: Lab, start_wire: StartWire) -> None:
    """T29"""
    async with start_wire(lab) as wire:
        client, server = await traffic.tcp_pair(lab, "a", "b", socket.AF_INET)
        with client, server:
            assert await exchange(client, server) < 20 * MS
            await wire.impair("a--s", A_TO_B, {"delay": 60 * MS})
            assert await exchange(client, server) >= 60 * MS
            await wire.block("cut", [("a:eth1", "b:eth1")])
            stuck = asyncio.create_task(exchange(client, server))
            done, _ = await asyncio.wait([stuck], timeout=0.3)
            assert not done
            await wire.unblock("cut")
            await wire.restore("a--s", A_TO_B, ["delay"])
            async with asyncio.timeout(traffic.PATIENCE):
                await stuck
            assert await exchange(client, server) < 20 * MS


async def exchange(client: socket.socket, server: socket.socket) -> int:
    """One byte there and one back; ns."""
    loop = asyncio.get_running_loop()
    begun = time.monotonic_ns()
    await loop.sock_sendall(client, b"?")
    await loop.sock_recv(server, 1)
    await loop.sock_sendall(server, b"!")
    await loop.sock_recv(client, 1)
    return time.monotonic_ns() - begun


async def test_a_block_is_one_way(lab: Lab, start_wire: StartWire) -> None:
    async with start_wire(lab) as wire:
        traffic.round_trip(lab, "a", "b")  # both know the other's address from here on
        await wire.block("cut", [("a:eth1", "b:eth1")])
        assert traffic.blast(lab, "a", "b", 100, size=100) == set()
        assert len(traffic.blast(lab, "b", "a", 100, size=100)) == 100
        assert len(traffic.blast(lab, "a", "c", 100, size=100)) == 100
        await wire.unblock("cut")
        assert len(traffic.blast(lab, "a", "b", 100, size=100)) == 100
        assert (await wire.stats()).blocked > 0


async def test_rate_is_what_a_transfer_gets(lab: Lab, start_wire: StartWire) -> None:
    """T26: a bandwidth is neither ignored nor misread, with super-frames too."""
    async with start_wire(lab) as wire:
        await wire.impair("a--s", A_TO_B, {"rate": 100_000_000})
        size = 6_000_000
        seconds = await traffic.tcp_transfer(lab, "a", "b", socket.AF_INET, size)
    goodput = size * 8 / seconds
    assert 80_000_000 < goodput < 100_000_000 * 1448 / 1514


async def test_a_full_queue_is_counted_apart_from_loss(lab: Lab, start_wire: StartWire) -> None:
    """T23"""
    async with start_wire(lab) as wire:
        assert len(traffic.blast(lab, "a", "b", 10)) == 10
        await wire.impair("a--s", A_TO_B, {"rate": 10_000_000, "queue": 20_000})
        arrived = traffic.blast(lab, "a", "b", 200, burst=200)
        stats = await wire.stats()
    assert 13 <= len(arrived) < 100
    assert stats.overflowed == 200 - len(arrived)
    assert stats.lost == stats.overrun == 0


async def test_delay_times_rate_loses_nothing_unless_asked_for(lab: Lab, start_wire: StartWire) -> None:
    """T23"""
    async with start_wire(lab, Impairment(delay=100 * MS, rate=200_000_000)) as wire:
        arrived = traffic.blast(lab, "a", "b", 2000)
        stats = await wire.stats()
    assert len(arrived) == 2000
    assert stats.overflowed == stats.overrun == stats.lost == 0


async def test_jitter_keeps_the_order(lab: Lab, start_wire: StartWire) -> None:
    """T24"""
    async with start_wire(lab, Impairment(jitter=20 * MS)):
        # Until the address is resolved, the sender's kernel itself queues, and may send out of order.
        traffic.round_trip(lab, "a", "b")
        with traffic.udp_socket(lab, "a") as sender, traffic.udp_socket(lab, "b") as receiver:
            for number in range(300):
                sender.sendto(number.to_bytes(2, "big"), (lab.ipv4("b"), traffic.PORT))
            received = [int.from_bytes(receiver.recv(2), "big") for _ in range(300)]
    assert received == list(range(300))


async def test_damage_is_noticed_by_the_receivers_checksum(lab: Lab, start_wire: StartWire) -> None:
    """With checksum offload a receiver trusts the sender's word: the wire must do the sum before it does the damage."""
    async with start_wire(lab) as wire:
        await traffic.tcp_transfer(lab, "a", "b", socket.AF_INET, 1000)
        await wire.impair("a--s", A_TO_B, {"corrupt": 0.05})
        await traffic.tcp_transfer(lab, "a", "b", socket.AF_INET, 1_000_000)
        assert (await wire.stats()).lines["a--s/a-to-b"].corrupted > 10


async def test_a_switch_marks_congestion(lab: Lab, start_wire: StartWire) -> None:
    ect, ce = 2, 3
    async with start_wire(lab, program="ecn-mark:3000B") as wire:
        await wire.impair("b--s", B_TO_A, {"rate": 10_000_000})
        with traffic.udp_socket(lab, "a") as sender, traffic.udp_socket(lab, "b") as receiver:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ect)
            receiver.setsockopt(socket.IPPROTO_IP, 13, 1)  # IP_RECVTOS
            for _ in range(20):
                sender.sendto(bytes(1000), (lab.ipv4("b"), traffic.PORT))
            marks = [receiver.recvmsg(2000, 100)[1][0][2][0] for _ in range(20)]
    assert marks[:3] == [ect] * 3
    assert marks[-10:] == [ce] * 10


async def test_what_the_network_does_not_know_is_refused_by_name(lab: Lab, start_wire: StartWire) -> None:
    async with start_wire(lab) as wire:
        with pytest.raises(ValueError, match="link 'x--s': not known"):
            await wire.impair("x--s", A_TO_B, {"delay": MS})
        with pytest.raises(ValueError, match="expected a-to-b or b-to-a"):
            await wire.impair("a--s", "both", {"delay": MS})
        with pytest.raises(ValueError, match="loss: 3 is not a probability"):
            await wire.impair("a--s", A_TO_B, {"loss": 3})
        with pytest.raises(ValueError, match="nothing is blocked"):
            await wire.unblock("cut")
        traffic.udp_exchange(lab, "a", "b", socket.AF_INET, [100])


async def test_delay_error_stays_small(lab: Lab, start_wire: StartWire) -> None:
    """T46: the wire measures its own lag."""
    async with start_wire(lab, Impairment(delay=2 * MS)) as wire:
        for _ in range(20):
            traffic.one_way(lab, "a", "b")
        stats = await wire.stats()
    assert stats.delivered > 100
    assert 0 < stats.lag_p50_ns <= stats.lag_p99_ns
    assert stats.lag_p50_ns < MS
    assert stats.lag_max_ns >= stats.lag_p99_ns - 1000
