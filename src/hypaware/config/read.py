"""Validates a parsed TOML table and converts it to a `Config`.

Raises `Problem` with the path of the key; `load.py` adds the file and the line. Registered names (clients, sinks,
datasets) are looked up only if they are not built in, because finding entry points takes longer than everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hypaware.config import schema, secrets
from hypaware.config.schema import (
    SINK_COMMON,
    SINK_KINDS,
    ClientConfig,
    Config,
    EngineConfig,
    FlushConfig,
    GatewayConfig,
    LakeConfig,
    MaintainConfig,
    PrivacyConfig,
    RedactionConfig,
    RetentionConfig,
    Setting,
    SinkConfig,
    UpstreamConfig,
)
from hypaware.config.values import NAME, PRIVACY_CLASS, Kind, whole
from hypaware.config.where import KeyPath, dotted
from hypaware.nearest import nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Reader = Callable[[Any, KeyPath], Any]
T = TypeVar("T", bound="DataclassInstance")

_DAYS = whole(0)
_SECTIONS: Mapping[str, type[DataclassInstance]] = {
    "gateway": GatewayConfig,
    "engine": EngineConfig,
    "lake": LakeConfig,
    "flush": FlushConfig,
    "retention": RetentionConfig,
    "maintain": MaintainConfig,
    "redaction": RedactionConfig,
    "privacy": PrivacyConfig,
}


class Problem(Exception):
    """An invalid key, with the reason."""

    def __init__(self, path: KeyPath, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


def read(table: Mapping[str, Any]) -> Config:
    if found := secrets.find(table):
        path, advice = found
        raise Problem(path, f"{dotted(path)}: {advice}")
    version = table.get("version", schema.VERSION)
    if type(version) is not int or version != schema.VERSION:
        raise Problem(
            ("version",),
            f"version is {_preview(version)}, but this version of HypAware reads version {schema.VERSION}: "
            f"write version = {schema.VERSION}, or use the version of HypAware that wrote this file",
        )
    own: dict[str, Reader] = {
        "version": lambda raw, _path: raw,
        "gateway": lambda raw, path: _section(GatewayConfig, raw, path, {"upstreams": _upstreams}),
        "clients": _clients,
        "engine": lambda raw, path: _section(EngineConfig, raw, path),
        "lake": _lake,
        "flush": lambda raw, path: _section(FlushConfig, raw, path),
        "retention": lambda raw, path: _section(RetentionConfig, raw, path, {"datasets": _days_of_datasets}),
        "maintain": lambda raw, path: _section(MaintainConfig, raw, path),
        "redaction": lambda raw, path: _section(RedactionConfig, raw, path),
        "privacy": lambda raw, path: _section(PrivacyConfig, raw, path, {"folders": _folders}),
        "sinks": _sinks,
    }
    return _section(Config, table, (), own)


def _section(section: type[T], raw: Any, path: KeyPath, own: Mapping[str, Reader] | None = None) -> T:
    """Read a table into its dataclass. `own` has the readers of fields that are not a single setting."""
    settings: dict[str, Setting] = {
        each.name: each.metadata["setting"] for each in fields(section) if "setting" in each.metadata
    }
    readers = {name: _reader(setting) for name, setting in settings.items()} | dict(own or {})
    table = _table(raw, path)
    _reject_unknown(table, readers, path)
    _reject_missing(table, settings, path)
    return section(**{name: readers[name](value, (*path, name)) for name, value in table.items()})


def _reader(setting: Setting) -> Reader:
    return lambda raw, path: _value(setting.kind, raw, path)


def _value(kind: Kind, raw: Any, path: KeyPath) -> Any:
    try:
        return kind.read(raw)
    except ValueError as error:
        reason = f" ({error})" if str(error) else ""
        raise Problem(
            path, f"{dotted(path)} is {_preview(raw)}{reason}: expected {kind.expected}, such as {kind.example}"
        ) from None


def _table(raw: Any, path: KeyPath) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise Problem(
            path, f"{dotted(path)} is {_preview(raw)}: expected a table: [{dotted(path)}] followed by its keys"
        )
    return raw


def _reject_unknown(table: Mapping[str, Any], known: Iterable[str], path: KeyPath) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            elsewhere = [other for other in all_keys() if other.rpartition(".")[2] == key]
            siblings = {dotted((*path, name)): name for name in names}
            hint = nearest(key, dict.fromkeys(elsewhere, key) or siblings)
            raise Problem((*path, key), f"unknown key {dotted((*path, key))}.{hint}")


def _reject_missing(table: Mapping[str, Any], settings: Mapping[str, Setting], path: KeyPath) -> None:
    for name, setting in settings.items():
        if setting.required and name not in table:
            raise Problem(
                path,
                f"{dotted(path)} has no {name}: expected {name} = {setting.kind.example} ({setting.about})",
            )


def _named(raw: Any, path: KeyPath) -> Iterable[tuple[str, Any, KeyPath]]:
    for name, value in _table(raw, path).items():
        _value(NAME, name, (*path, name))
        yield name, value, (*path, name)


def _upstreams(raw: Any, path: KeyPath) -> tuple[UpstreamConfig, ...]:
    if not isinstance(raw, list):
        raise Problem(
            path,
            f"{dotted(path)} is {_preview(raw)}: expected an array of tables, each starting with [[{dotted(path)}]]",
        )
    found: list[UpstreamConfig] = []
    for at, item in enumerate(raw):
        upstream = _section(UpstreamConfig, item, (*path, at))
        for other in found:
            if other.name == upstream.name or other.path_prefix == upstream.path_prefix:
                raise Problem((*path, at), f"{dotted((*path, at))} has the same name or path_prefix as {other.name}")
        found.append(replace(upstream, provider=upstream.provider or upstream.name))
    return tuple(found)


def _clients(raw: Any, path: KeyPath) -> dict[str, ClientConfig]:
    found = {}
    for name, value, at in _named(raw, path):
        if name not in schema.BUILT_IN_CLIENTS:
            _reject_unregistered(name, "hypaware.clients", schema.BUILT_IN_CLIENTS, "client", at)
        found[name] = _section(ClientConfig, value, at)
    return found


def _lake(raw: Any, path: KeyPath) -> LakeConfig:
    lake = _section(LakeConfig, raw, path)
    if lake.catalog == "embedded" and "://" in lake.warehouse:
        raise Problem(
            (*path, "warehouse"),
            f"lake.warehouse is {_preview(lake.warehouse)}, which needs a shared catalog: "
            'set lake.catalog to a table such as { type = "rest", uri = "…" }, or use a local folder',
        )
    return lake


def _days_of_datasets(raw: Any, path: KeyPath) -> dict[str, int]:
    days = dict(RetentionConfig().datasets)
    for name, value, at in _named(raw, path):
        if name not in (*schema.DEFAULT_DATASETS, *schema.LOCAL_DATASETS):
            _reject_unknown_dataset(name, at)
        days[name] = _value(_DAYS, value, at)
    return days


def _folders(raw: Any, path: KeyPath) -> dict[str, str]:
    found: dict[str, str] = {}
    for folder, value in _table(raw, path).items():
        if not _is_absolute(folder):
            raise Problem(
                (*path, folder),
                f'{dotted((*path, folder))}: expected an absolute path as the key, such as "~/work" = "local-only"',
            )
        found[folder] = _value(PRIVACY_CLASS, value, (*path, folder))
    return found


def _is_absolute(folder: str) -> bool:
    try:
        return Path(folder).expanduser().is_absolute() and "\0" not in folder
    except RuntimeError:
        # The home directory of an unknown user.
        return False


def _sinks(raw: Any, path: KeyPath) -> dict[str, SinkConfig]:
    return {name: _sink(value, at) for name, value, at in _named(raw, path)}


def _sink(raw: Any, path: KeyPath) -> SinkConfig:
    table = _table(raw, path)
    _reject_missing(table, {"kind": SINK_COMMON["kind"]}, path)
    kind_name = _value(NAME, table["kind"], (*path, "kind"))
    if kind := SINK_KINDS.get(kind_name):
        _reject_unknown(table, (*SINK_COMMON, *kind.options), path)
        _reject_missing(table, kind.options, path)
    else:
        _reject_unregistered(kind_name, "hypaware.sinks", SINK_KINDS, "kind of sink", (*path, "kind"))
    options = {name: value for name, value in table.items() if name not in SINK_COMMON}
    if kind:
        defaults = {name: setting.default for name, setting in kind.options.items()}
        given = {name: _value(kind.options[name].kind, value, (*path, name)) for name, value in options.items()}
        options = defaults | given
        if options.get("encoder", "parquet") not in schema.BUILT_IN_ENCODERS:
            at = (*path, "encoder")
            _reject_unregistered(options["encoder"], "hypaware.encoders", schema.BUILT_IN_ENCODERS, "encoder", at)
    schedule = table.get("schedule", kind.schedule if kind else "*/5 * * * *")
    return SinkConfig(
        kind=kind_name,
        schedule=_value(SINK_COMMON["schedule"].kind, schedule, (*path, "schedule")),
        datasets=_datasets_of_sink(table, path, one=bool(kind and kind.one_dataset)),
        options=options,
    )


def _datasets_of_sink(table: Mapping[str, Any], path: KeyPath, one: bool) -> tuple[str, ...]:
    at = (*path, "datasets")
    datasets: tuple[str, ...] = _value(SINK_COMMON["datasets"].kind, table.get("datasets", schema.DEFAULT_DATASETS), at)
    for name in datasets:
        if name in schema.LOCAL_DATASETS:
            raise Problem(at, f"{dotted(at)} names {name}, which cannot be exported: it stays on this machine")
        if name not in schema.DEFAULT_DATASETS:
            _reject_unknown_dataset(name, at)
    if one and len(datasets) > 1:
        raise Problem(
            at,
            f"{dotted(at)} names {len(datasets)} datasets, but a table can hold only one",
        )
    return datasets


def _reject_unknown_dataset(name: str, path: KeyPath) -> None:
    from hypaware.model import datasets

    known = (*datasets.names(), *schema.LOCAL_DATASETS)
    if name not in known:
        raise Problem(path, f"{dotted(path)}: there is no dataset {name!r}.{nearest(name, known)}")


def _reject_unregistered(name: str, group: str, built_in: Iterable[str], what: str, path: KeyPath) -> None:
    from hypaware import plugins

    known = tuple(dict.fromkeys((*built_in, *plugins.names(group))))
    if name not in known:
        raise Problem(path, f"{dotted(path)}: there is no {what} {name!r}.{nearest(name, known)}")


def all_keys() -> list[str]:
    """Return every fixed key in dotted form, for hints and for the docs."""
    found = []
    for each in fields(Config):
        found.append(each.name)
        if section := _SECTIONS.get(each.name):
            found.extend(f"{each.name}.{inner.name}" for inner in fields(section))
    return found


def _preview(raw: Any) -> str:
    import json

    text = json.dumps(raw, ensure_ascii=True, default=str)
    return text if len(text) <= 80 else text[:77] + "…"
