"""Which GPUs this machine shows, and what nodes get of them. No library is asked: only device files and CUDA's own
variable are looked at.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.errors import CannotRun
from testbed.plan import GpuRequest, Plan

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(devices: Path = Path("/dev"), environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The GPUs that a process started here could use, as CUDA calls them, in its order."""
    numbers = sorted(
        int(path.name.removeprefix("nvidia"))
        for path in devices.glob("nvidia[0-9]*")
        if path.name.removeprefix("nvidia").isdecimal()
    )
    there = [str(place) for place, _ in enumerate(numbers)]  # CUDA counts what is there, whatever the files are called
    if not there and (devices / "dxg").exists():  # Windows' Linux: its GPUs have one device file
        there = ["0"]
    asked = environment.get(VARIABLE)
    if asked is None:
        return tuple(there)
    chosen: list[str] = []
    for one in map(str.strip, asked.split(",")):
        if not there or not (one in there or one.startswith(("GPU-", "MIG-"))):
            break  # as CUDA does: what follows something unknown is not visible either
        chosen.append(one)
    return tuple(chosen)


def gpus_available() -> int:
    """How many GPUs a process started here could use."""
    return len(visible_gpus())


def granted(request: GpuRequest, visible: Sequence[str]) -> tuple[str, ...]:
    """What a node gets: all that it asked for, or nothing. Nodes share GPUs, as containers do: a count means the
    first so many.
    """
    if request.all:
        return tuple(visible)
    if request.ids:
        return request.ids if set(request.ids) <= set(visible) else ()
    return tuple(visible[: request.count]) if request.count <= len(visible) else ()


def check_gpus(plan: Plan, visible: Sequence[str] | None = None) -> list[str]:
    """What is to be said about nodes that asked for GPUs which are not here. Raises CannotRun where one is required
    (T49). ``visible``: instead of what this machine shows.
    """
    there = visible_gpus() if visible is None else tuple(visible)
    said, refused = [], []
    for node in plan.nodes.values():
        request = node.gpus
        if request is None or granted(request, there):
            continue
        what = f"{_asked(request)}, and this machine has {', '.join(there) or 'none'}"
        if request.required:
            refused.append(f"{node.name} requires {what}")
        else:
            said.append(f"{node.name} asks for {what}: it runs on the CPU")
    if refused:
        raise CannotRun("; ".join(refused) + "; with required: false it would run on the CPU")
    return said


def _asked(request: GpuRequest) -> str:
    if request.ids:
        return f"the GPU{'s' * (len(request.ids) > 1)} {', '.join(request.ids)}"
    wanted = request.count or 1
    return "GPUs" if request.all else f"{wanted} GPU{'s' * (wanted > 1)}"
