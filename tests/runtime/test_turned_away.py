"""A node that its cluster does not want is told so, and does not go on alone."""

from __future__ import annotations

import pytest

import connex


@pytest.mark.parametrize(
    ("secret", "cluster", "why"), [(b"other", "here", "secret"), (b"s3cret", "elsewhere", "cluster|belongs to")]
)
async def test_a_wrong_secret_or_cluster_is_an_error(secret: bytes, cluster: str, why: str) -> None:
    async with connex.Node("a", secret=b"s3cret", cluster="here") as seed:
        with pytest.raises(connex.ChannelRefused, match=f"node b cannot join: .*({why})"):
            async with connex.Node("b", secret=secret, cluster=cluster, seeds=[seed.locator]):
                pytest.fail("it joined")
        assert seed.status()["members"] == [] or all(member["node"] != "b" for member in seed.status()["members"])


async def test_nobody_there_is_no_error() -> None:
    async with connex.Node("first", seeds=["127.0.0.1:9"]) as node:
        await node.host("x")
