"""What the wire and whoever started it say to each other: one JSON object per line, in both directions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from faults.impairment import Impairment
from testbed.network.spec import FabricSpec, LinkSpec, Port, SwitchSpec

LINE_LIMIT = 64 * 1024 * 1024
"""Longest message, in bytes: a network of some 100,000 links."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything the wire is told when it starts."""

    spec: FabricSpec
    attachments: dict[Port, str]
    captures: dict[Port, str]
    fifo: bool


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode_setup(data: dict[str, Any]) -> Setup:
    return Setup(_decode_spec(data["spec"]), data["attachments"], data["captures"], data["fifo"])


def _decode_spec(data: dict[str, Any]) -> FabricSpec:
    links = tuple(
        LinkSpec(**{**link, "a_to_b": Impairment(**link["a_to_b"]), "b_to_a": Impairment(**link["b_to_a"])})
        for link in data["links"]
    )
    switches = tuple(SwitchSpec(**{**switch, "ports": tuple(switch["ports"])}) for switch in data["switches"])
    return FabricSpec(links, switches, data["seed"])
