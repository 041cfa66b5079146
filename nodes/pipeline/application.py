"""The pipeline in one process: plays the roles of the endpoints that are served here, and answers what it is asked
about them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline import saved
from pipeline.clock import Clock
from pipeline.parameters import ParameterError, Parameters
from pipeline.port import CommandError, Endpoint, Messenger, Role
from pipeline.sink import Sink
from pipeline.source import Source
from pipeline.stage import Stage


class Application:
    """``parameters`` are needed to begin a pipeline here; to play what arrives, nothing is needed: its parameters
    come with it.
    """

    def __init__(self, messenger: Messenger, clock: Clock, parameters: Parameters | None = None) -> None:
        self._messenger = messenger
        self._clock = clock
        self._parameters = parameters
        self._source: Source | None = None
        messenger.on_arrival(self._arrived)
        messenger.on_command("start", self._start)
        messenger.on_command("progress", self._progress)
        messenger.on_command("finish", self._finish)

    async def host(self, endpoints: Iterable[str]) -> None:
        """Begin to serve these endpoints. Raises ParameterError of one that is no part of the pipeline."""
        for name in endpoints:
            self.check(name, self._parameters)
            await self._messenger.host(name, self._begun)

    @staticmethod
    def check(name: str, parameters: Parameters | None) -> None:
        """Raises ParameterError if a pipeline with these parameters has no endpoint of that name."""
        if parameters is None:
            raise ParameterError(f"endpoint {name} is to be served, but there are no pipeline parameters")
        if name not in ("source", "sink") and not 1 <= _number(name) <= parameters.stages:
            raise ParameterError(f"endpoint {name!r}; expected source, sink, or stage-1 to stage-{parameters.stages}")

    # Roles

    def _begun(self, endpoint: Endpoint) -> Role:
        assert self._parameters is not None
        text = self._parameters.to_json()
        endpoint.region(saved.PARAMETERS, len(text)).write(0, text)
        return self._play(endpoint, self._parameters, arrived=False)

    def _arrived(self, endpoint: Endpoint) -> Role:
        parameters = Parameters.from_json(bytes(endpoint.region(saved.PARAMETERS).view))
        return self._play(endpoint, parameters, arrived=True)

    def _play(self, endpoint: Endpoint, parameters: Parameters, arrived: bool) -> Role:
        if endpoint.name == "source":
            source = Source(endpoint, parameters, self._clock, self._messenger.record, arrived)
            self._source = source
            return source
        if endpoint.name == "sink":
            return Sink(endpoint, self._clock, arrived)
        return Stage(endpoint, _number(endpoint.name), parameters, self._clock, arrived)

    # Commands

    async def _start(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self._served_source().start()
        return {}

    async def _progress(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return self._served_source().progress()

    async def _finish(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return await self._served_source().finish()

    def _served_source(self) -> Source:
        if self._source is not None and not self._source.released:
            return self._source
        raise CommandError(f"{self._messenger.node} does not serve the endpoint source; ask the node that does")


def _number(name: str) -> int:
    """Of a stage by its name; 0 if it is none."""
    prefix, _, digits = name.partition("stage-")
    return int(digits) if not prefix and digits.isascii() and digits.isdecimal() else 0
