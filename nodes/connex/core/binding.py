"""Where an endpoint is, and how new that knowledge is."""

from __future__ import annotations

from typing import NamedTuple

from connex.core.identity import EndpointName, Life, NodeName


class Binding(NamedTuple):
    """An endpoint's owner under one epoch. An empty ``node`` says that the endpoint is gone under that epoch."""

    endpoint: EndpointName
    epoch: int
    node: NodeName
    incarnation: int
    locator: str

    @property
    def gone(self) -> bool:
        return not self.node

    @property
    def life(self) -> Life:
        """The life of the owner."""
        return Life(self.node, self.incarnation)


def newer(candidate: Binding, known: Binding | None) -> bool:
    """Whether ``candidate`` replaces ``known``: the one comparison of bindings in the whole of Connex.

    Newest (epoch, incarnation) wins. That an endpoint is gone is the last thing that can be said of an epoch.
    """
    if known is None:
        return True
    if candidate.epoch != known.epoch:
        return candidate.epoch > known.epoch
    if candidate.gone or known.gone:
        return candidate.gone and not known.gone
    return candidate.incarnation > known.incarnation


class BindingTable:
    """The newest binding known of each endpoint."""

    def __init__(self) -> None:
        self._newest: dict[EndpointName, Binding] = {}
        self.changes = 0
        """How often anything was learned."""

    def __len__(self) -> int:
        return len(self._newest)

    def get(self, endpoint: EndpointName) -> Binding | None:
        return self._newest.get(endpoint)

    def learn(self, binding: Binding) -> bool:
        """Keep ``binding`` if it is newer than what is known; say whether it was."""
        if not newer(binding, self._newest.get(binding.endpoint)):
            return False
        self._newest[binding.endpoint] = binding
        self.changes += 1
        return True

    def all(self) -> list[Binding]:
        return list(self._newest.values())
