"""Offloads of an interface, and what they make of the frames."""

from __future__ import annotations

import pytest

from testbed.backends.offload import offloads, set_offloads
from tests.wire.lab import Lab, inside

pytestmark = [pytest.mark.live, pytest.mark.needs("root")]


def test_they_are_switched_off_and_on_again(lab: Lab) -> None:
    with inside(lab.nodes["a"]):
        before = offloads("eth1")
        assert before["tx-tcp-segmentation"]
        assert before["tx-checksum-ip-generic"]
        set_offloads("eth1", False)
        assert not any(offloads("eth1").values())
        set_offloads("eth1", True)
        assert offloads("eth1") == before


def test_an_unknown_interface_is_named(lab: Lab) -> None:
    with inside(lab.nodes["a"]), pytest.raises(OSError, match="nosuch: ethtool: No such device"):
        set_offloads("nosuch", False)
