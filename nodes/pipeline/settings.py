"""What a node process is told: the content of ``node.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.parameters import ParameterError, Parameters

ADAPTERS = ("connex", "tcp")


class SettingsError(ValueError):
    """``node.json`` does not say what it should; the text names file and key and what was expected."""


@dataclass(frozen=True, slots=True)
class Settings:
    name: str
    cluster: str
    bind: str
    locator: str
    secret: bytes
    seeds: tuple[str, ...]
    control: Path | None
    journal: Path | None
    connex: Mapping[str, Any]
    """Overrides of Connex's configuration, by field name."""
    adapter: str
    endpoints: tuple[str, ...]
    """Served here from the start."""
    static: Mapping[str, str]
    """Where each endpoint is, for adapters that cannot find out."""
    parameters: Parameters | None


def load(path: Path) -> Settings:
    """Raises SettingsError, and OSError of a file that cannot be read."""
    try:
        content = json.loads(path.read_bytes())
        return _settings(content)
    except (ParameterError, SettingsError, ValueError, KeyError, TypeError) as error:
        text = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise SettingsError(f"{path}: {text}") from error


def _settings(content: Any) -> Settings:
    if not isinstance(content, dict):
        raise SettingsError("expected a JSON object")
    adapter = content.get("adapter", "connex")
    if adapter not in ADAPTERS:
        raise SettingsError(f"adapter is {adapter!r}; expected one of {', '.join(ADAPTERS)}")
    pipeline = content.get("pipeline")
    return Settings(
        name=content["name"],
        cluster=content["cluster"],
        bind=content["bind"],
        locator=content["locator"],
        secret=bytes.fromhex(content["secret"]),
        seeds=tuple(content["seeds"]),
        control=_path(content.get("control")),
        journal=_path(content.get("journal")),
        connex=dict(content.get("connex") or {}),
        adapter=adapter,
        endpoints=tuple(content.get("endpoints", ())),
        static=dict(content.get("static") or {}),
        parameters=Parameters.load(content["seed"], pipeline) if pipeline is not None else None,
    )


def _path(value: Any) -> Path | None:
    return Path(value) if value else None
