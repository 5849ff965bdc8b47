"""Renders the effective configuration, including defaults, in the notation of the file: `"2m"`, not 120.0."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from hypaware.config.schema import SINK_COMMON, SINK_KINDS, Config, Setting, SinkConfig


def to_table(config: Config) -> dict[str, Any]:
    """Return the contents of a config.toml that sets every key."""
    return _section(config)


def to_toml(config: Config) -> str:
    import tomlkit

    return tomlkit.dumps(to_table(config))


def _section(value: Any) -> dict[str, Any]:
    found = {}
    for each in fields(value):
        setting: Setting | None = each.metadata.get("setting")
        inner = getattr(value, each.name)
        found[each.name] = setting.kind.write(inner) if setting else _plain(inner)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, SinkConfig):
        return _sink(value)
    if is_dataclass(value):
        return _section(value)
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return value


def _sink(sink: SinkConfig) -> dict[str, Any]:
    kind = SINK_KINDS.get(sink.kind)
    options = {
        name: kind.options[name].kind.write(value) if kind else value
        for name, value in sink.options.items()
        if value is not None
    }
    datasets = SINK_COMMON["datasets"].kind.write(sink.datasets)
    return {"kind": sink.kind, **options, "schedule": sink.schedule, "datasets": datasets}
