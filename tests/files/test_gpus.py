"""GPUs that are asked for: found without any library, shared, and said or refused where they are missing (T49)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from faults.document import parse
from testbed.errors import CannotRun
from testbed.gpus import visible_gpus
from testbed.plan import Plan
from testbed.topology import check_gpus, make_plan, read_topology


def plan(*gpus: str, there: tuple[str, ...] = ()) -> Plan:
    nodes = "".join(f"    w{number}: {{gpus: {{{one}}}}}\n" for number, one in enumerate(gpus))
    links = "".join(f"    - {{endpoints: [w{number}:e, s:p{number}]}}\n" for number in range(len(gpus)))
    text = f"name: lab\ntopology:\n  nodes:\n    s: {{kind: switch}}\n{nodes}  links:\n{links}"
    return make_plan(read_topology(parse(text, "t.yaml")), "cafe0001", 1, gpus=there)


@pytest.mark.parametrize(
    ("files", "environment", "visible"),
    [
        ([], {}, ()),
        (["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], {}, ("0", "1")),
        (["nvidia3"], {}, ("0",)),
        (["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "1"}, ("1",)),
        (["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "1, 7, 0"}, ("1",)),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, ("GPU-8932f937",)),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": ""}, ()),
        ([], {"CUDA_VISIBLE_DEVICES": "0"}, ()),
        (["dxg"], {}, ("0",)),
    ],
)
def test_what_this_machine_shows(
    tmp_path: Path, files: list[str], environment: Mapping[str, str], visible: tuple[str, ...]
) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert visible_gpus(tmp_path, environment) == visible


def test_where_there_are_none_it_is_said_or_refused_before_anything_starts() -> None:
    assert check_gpus(plan("count: 2", "all: true", "ids: ['3']"), ()) == [
        "w0 asks for 2 GPUs, and this machine has none: it runs on the CPU",
        "w1 asks for GPUs, and this machine has none: it runs on the CPU",
        "w2 asks for the GPU 3, and this machine has none: it runs on the CPU",
    ]
    with pytest.raises(CannotRun, match="w0 requires 2 GPUs, and this machine has 0; w1 requires the GPU 3"):
        check_gpus(plan("count: 2, required: true", "ids: ['3'], required: true", "count: 1, required: true"), ("0",))


def test_a_node_sees_the_gpus_that_it_asked_for() -> None:
    asked = ("count: 1", "count: 2", "all: true", "ids: ['1']", "count: 3", "ids: ['9']")
    there = ("0", "1")
    made = plan(*asked, there=there)
    seen = [node.env["CUDA_VISIBLE_DEVICES"] for node in made.nodes.values()]
    assert seen == ["0", "0,1", "0,1", "1", "", ""]
    assert len(check_gpus(made, there)) == 2
