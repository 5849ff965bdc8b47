"""Validates a parsed TOML table and converts it to a `Config`.

Raises `ConfigProblem` with the path of the key; `load.py` adds the file and the line. Registered names (clients, sinks,
datasets) are looked up only if they are not built in, because finding entry points takes longer than everything else.

Secrets are rejected, because config files end up in backups, bug reports and dotfile repositories. Every key is checked
for them, known or not, before any message is made. No message contains the value of a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from hypaware.config import schema
from hypaware.config.schema import SINK_COMMON, SINK_KINDS, Config, LakeConfig, RetentionConfig, Setting, SinkConfig
from hypaware.config.spark_settings import is_secret_setting
from hypaware.config.values import NAME, PRIVACY_CLASS, ValueType, integer, is_loopback
from hypaware.text import did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

KeyPath = tuple[str | int, ...]
Reader = Callable[[Any, KeyPath], Any]
T = TypeVar("T", bound="DataclassInstance")

_BUILT_IN_CLIENTS = Path(__file__).parents[1] / "clients"
"""Has a folder for each of them, which is found faster than an entry point."""
_DAYS = integer(0)
_SECTIONS: Mapping[str, type[DataclassInstance]] = {
    name: type(section)
    for name, section in vars(Config()).items()
    if is_dataclass(section) and not isinstance(section, type)
}
_SECRET_KEY = re.compile(
    r"(?:^|[_.\-])(?:token|password|passwd|passphrase|secret|api[_\-]?key|credentials?|authorization"
    r"|(?:secret|private)[_\-]?(?:access[_\-]?)?key|session[_\-]?token|account[_\-]?key)$",
    re.IGNORECASE,
)
# user:password@host, or a password in the query of an address.
_SECRET_IN_ADDRESS = re.compile(r"://[^/@\s]+:[^/@\s]+@|[?&;](?:password|token|secret)=[^&;\s]", re.IGNORECASE)


class ConfigProblem(Exception):
    """An invalid key, with the reason."""

    def __init__(self, path: KeyPath, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


def validate(table: Mapping[str, Any]) -> Config:
    _reject_secrets(table)
    version = table.get("version", schema.VERSION)
    if type(version) is not int or version != schema.VERSION:
        raise ConfigProblem(
            ("version",),
            f"version is {_preview(version)}, but this version of HypAware reads version {schema.VERSION}: "
            f"write version = {schema.VERSION}, or use the version of HypAware that wrote this file",
        )
    readers: dict[str, Reader] = {name: _section_reader(section) for name, section in _SECTIONS.items()}
    readers |= {
        "version": lambda raw, _path: raw,
        "gateway": _gateway,
        "clients": _clients,
        "engine": _engine,
        "lake": _lake,
        "retention": _section_reader(RetentionConfig, {"datasets": _days_of_datasets}),
        "privacy": _section_reader(schema.PrivacyConfig, {"folders": _folders}),
        "sinks": lambda raw, path: {name: _sink(value, at) for name, value, at in _named(raw, path)},
    }
    return _section(Config, table, (), readers)


def _reject_secrets(table: Mapping[str, Any]) -> None:
    for path, value in _leaves(table, ()):
        # These keys are paths, and a folder can have any name.
        if path[:-1] == ("privacy", "folders"):
            continue
        # Its value is the path of a file, or a word that says where they are.
        if path == ("lake", "s3", "credentials"):
            continue
        name = next(part for part in reversed(path) if isinstance(part, str))
        if path[:2] == ("engine", "spark") and is_secret_setting(name):
            raise ConfigProblem(
                path,
                f"{format_key(path)}: the config must not contain secrets: engine.secret_file names a file with the "
                "cluster's, and storage reads its own from an *_env variable, a *_file or the machine",
            )
        if _SECRET_KEY.search(name):
            stem = name.replace("-", "_").replace(".", "_")
            raise ConfigProblem(
                path,
                f"{format_key(path)}: the config must not contain secrets: store it in a file and set "
                f'{stem}_file = "path", or in an environment variable and set {stem}_env = "VARIABLE"',
            )
        if isinstance(value, str) and _SECRET_IN_ADDRESS.search(value):
            message = "the address contains a password or token; use a *_file or *_env key instead"
            raise ConfigProblem(path, f"{format_key(path)}: {message}")


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _leaves(item, (*path, at))
    else:
        yield path, value


def _section_reader(section: type[T], own: Mapping[str, Reader] | None = None) -> Reader:
    return lambda raw, path: _section(section, raw, path, own)


def _section(section: type[T], raw: Any, path: KeyPath, own: Mapping[str, Reader] | None = None) -> T:
    """Read a table into its dataclass. `own` has the readers of fields that are not a single setting."""
    settings: dict[str, Setting] = {
        each.name: each.metadata["setting"] for each in fields(section) if "setting" in each.metadata
    }
    readers: dict[str, Reader] = {name: partial(_value, setting.kind) for name, setting in settings.items()}
    readers |= own or {}
    table = _table(raw, path)
    _reject_unknown(table, readers, path)
    _reject_missing(table, settings, path)
    return section(**{name: readers[name](value, (*path, name)) for name, value in table.items()})


def _value(kind: ValueType, raw: Any, path: KeyPath) -> Any:
    try:
        return kind.read(raw)
    except ValueError as error:
        reason = f" ({error})" if str(error) else ""
        expected = f"expected {kind.expected}, such as {kind.example}"
        raise ConfigProblem(path, f"{format_key(path)} is {_preview(raw)}{reason}: {expected}") from None


def _table(raw: Any, path: KeyPath) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        key = format_key(path)
        raise ConfigProblem(path, f"{key} is {_preview(raw)}: expected a table: [{key}] followed by its keys")
    return raw


def _reject_unknown(table: Mapping[str, Any], known: Iterable[str], path: KeyPath) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            elsewhere = [other for other in list_keys() if other.rpartition(".")[2] == key]
            siblings = {format_key((*path, name)): name for name in names}
            hint = did_you_mean(key, dict.fromkeys(elsewhere, key) or siblings)
            raise ConfigProblem((*path, key), f"unknown key {format_key((*path, key))}.{hint}")


def _reject_missing(table: Mapping[str, Any], settings: Mapping[str, Setting], path: KeyPath) -> None:
    for name, setting in settings.items():
        if setting.required and name not in table:
            expected = f"{name} = {setting.kind.example} ({setting.about})"
            raise ConfigProblem(path, f"{format_key(path)} has no {name}: expected {expected}")


def _named(raw: Any, path: KeyPath) -> Iterable[tuple[str, Any, KeyPath]]:
    for name, value in _table(raw, path).items():
        _value(NAME, name, (*path, name))
        yield name, value, (*path, name)


def _gateway(raw: Any, path: KeyPath) -> schema.GatewayConfig:
    gateway = _section(schema.GatewayConfig, raw, path, {"upstreams": _upstreams})
    if not gateway.allowed_hosts and not is_loopback(gateway.listen.rpartition(":")[0]):
        raise ConfigProblem(
            (*path, "listen"),
            f"gateway.listen is {_preview(gateway.listen)}, which other machines can reach: they could send requests "
            "through this gateway, which are recorded as yours. If you want that, first name the addresses under which "
            "they call it: hyp config set gateway.allowed_hosts '[\"192.0.2.7\"]'",
        )
    return gateway


def _upstreams(raw: Any, path: KeyPath) -> tuple[schema.UpstreamConfig, ...]:
    if not isinstance(raw, list):
        key = format_key(path)
        message = f"{key} is {_preview(raw)}: expected an array of tables, each starting with [[{key}]]"
        raise ConfigProblem(path, message)
    found: list[schema.UpstreamConfig] = []
    for at, item in enumerate(raw):
        upstream = _section(schema.UpstreamConfig, item, (*path, at))
        for other in found:
            if other.name == upstream.name or other.path_prefix == upstream.path_prefix:
                message = f"{format_key((*path, at))} has the same name or path_prefix as {other.name}"
                raise ConfigProblem((*path, at), message)
        found.append(replace(upstream, provider=upstream.provider or upstream.name))
    return tuple(found)


def _clients(raw: Any, path: KeyPath) -> dict[str, schema.ClientConfig]:
    found = {}
    for name, value, at in _named(raw, path):
        built_in = (name,) if name.isidentifier() and (_BUILT_IN_CLIENTS / name / "__init__.py").is_file() else ()
        _reject_unregistered(name, "hypaware.clients", built_in, "client", at)
        found[name] = _section(schema.ClientConfig, value, at)
    return found


def _engine(raw: Any, path: KeyPath) -> schema.EngineConfig:
    engine = _section(schema.EngineConfig, raw, path)
    if engine.master.startswith("local"):
        for name in engine.spark:
            if name in ("spark.driver.host", "spark.driver.bindAddress"):
                raise ConfigProblem(
                    (*path, "spark", name),
                    f"engine.spark: {name} can be set only for a cluster: on this machine, Spark listens on loopback",
                )
    return engine


def _lake(raw: Any, path: KeyPath) -> LakeConfig:
    lake = _section(LakeConfig, raw, path, {"s3": _section_reader(schema.LakeS3Config)})
    if lake.catalog == "embedded" and "://" in lake.warehouse:
        raise ConfigProblem(
            (*path, "warehouse"),
            f"lake.warehouse is {_preview(lake.warehouse)}, which needs a shared catalog: "
            'set lake.catalog to a table such as { type = "rest", uri = "…" }, or use a local folder',
        )
    return lake


def _days_of_datasets(raw: Any, path: KeyPath) -> dict[str, int]:
    days = dict(RetentionConfig().datasets)
    for name, value, at in _named(raw, path):
        _reject_unknown_dataset(name, at)
        days[name] = _value(_DAYS, value, at)
    return days


def _folders(raw: Any, path: KeyPath) -> dict[str, str]:
    found: dict[str, str] = {}
    for folder, value in _table(raw, path).items():
        is_absolute = False
        with suppress(RuntimeError):  # the home directory of an unknown user
            is_absolute = Path(folder).expanduser().is_absolute() and "\0" not in folder
        if not is_absolute:
            raise ConfigProblem(
                (*path, folder),
                f'{format_key((*path, folder))}: expected an absolute path as the key, such as "~/work" = "local-only"',
            )
        found[folder] = _value(PRIVACY_CLASS, value, (*path, folder))
    return found


def _sink(raw: Any, path: KeyPath) -> SinkConfig:
    table = _table(raw, path)
    _reject_missing(table, {"kind": SINK_COMMON["kind"]}, path)
    kind_name = _value(NAME, table["kind"], (*path, "kind"))
    _reject_unregistered(kind_name, "hypaware.sinks", SINK_KINDS, "kind of sink", (*path, "kind"))
    options = {name: value for name, value in table.items() if name not in SINK_COMMON}
    if kind := SINK_KINDS.get(kind_name):
        _reject_unknown(table, (*SINK_COMMON, *kind.options), path)
        _reject_missing(table, kind.options, path)
        defaults = {name: setting.default for name, setting in kind.options.items()}
        given = {name: _value(kind.options[name].kind, value, (*path, name)) for name, value in options.items()}
        options = defaults | given
        if encoder := options.get("encoder"):
            _reject_unregistered(encoder, "hypaware.encoders", schema.BUILT_IN_ENCODERS, "encoder", (*path, "encoder"))
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
            message = f"{format_key(at)} names {name}, which cannot be exported: it stays on this machine"
            raise ConfigProblem(at, message)
        _reject_unknown_dataset(name, at)
    if one and len(datasets) > 1:
        raise ConfigProblem(at, f"{format_key(at)} names {len(datasets)} datasets, but a table can hold only one")
    return datasets


def _reject_unknown_dataset(name: str, path: KeyPath) -> None:
    if name in (*schema.DEFAULT_DATASETS, *schema.DATASET_DAYS):
        return
    # Imported here: it loads the entry points.
    from hypaware.model import datasets

    known = (*datasets.list_names(), *schema.LOCAL_DATASETS)
    if name not in known:
        raise ConfigProblem(path, f"{format_key(path)}: unknown dataset {name!r}.{did_you_mean(name, known)}")


def _reject_unregistered(name: str, group: str, built_in: Iterable[str], what: str, path: KeyPath) -> None:
    if name in built_in:
        return
    # Imported here: it loads the entry points.
    from hypaware.plugins import plugin_names

    known = tuple(dict.fromkeys((*built_in, *plugin_names(group))))
    if name not in known:
        raise ConfigProblem(path, f"{format_key(path)}: unknown {what} {name!r}.{did_you_mean(name, known)}")


@dataclass(frozen=True)
class ConfigRisk:
    """A valid setting that gives others access to rows or tokens."""

    key: str
    kind: str
    message: str
    repair: str
    is_chosen: bool = False
    """Whether the user wrote a key that does nothing else, so that a reminder is enough."""


def find_risks(config: Config) -> Iterator[ConfigRisk]:
    gateway = config.gateway
    if not is_loopback(gateway.listen.rpartition(":")[0]):
        yield ConfigRisk(
            "gateway.listen",
            "gateway_remote",
            f"other machines can call the gateway on {gateway.listen} as {', '.join(gateway.allowed_hosts)}",
            "hyp config set gateway.listen 127.0.0.1:18521",
            is_chosen=True,
        )
    for name, sink in config.sinks.items():
        url = urlsplit(str(sink.options.get("url") or ""))
        if sink.kind == "forward" and url.scheme == "http" and not is_loopback(url.hostname or ""):
            yield ConfigRisk(
                f"sinks.{name}.url",
                "sink_unencrypted",
                f"the sink {name} sends rows and its token unencrypted to {url.hostname}",
                f"hyp config set sinks.{name}.url https://{url.netloc}{url.path}",
            )
    if config.engine.master.startswith("spark://") and not config.engine.secret_file:
        yield ConfigRisk(
            "engine.master",
            "cluster_without_secret",
            f"everyone on the network of {config.engine.master} can read rows from Spark's ports",
            "hyp config set engine.secret_file <file with the cluster's spark.authenticate.secret>",
        )


def list_keys() -> list[str]:
    """Return every fixed key in dotted form, for hints and for the docs."""
    found = []
    for each in fields(Config):
        found.append(each.name)
        if section := _SECTIONS.get(each.name):
            found.extend(f"{each.name}.{inner.name}" for inner in fields(section))
    return found


def format_key(path: KeyPath) -> str:
    """Format a key for display, such as `gateway.upstreams[0].name`, quoted where TOML requires it."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = part.replace("-", "").replace("_", "").isalnum() and part.isascii()
            text += ("." if text else "") + (part if bare else json.dumps(part, ensure_ascii=False))
    return text


def _preview(raw: Any) -> str:
    text = json.dumps(raw, ensure_ascii=True, default=str)
    return text if len(text) <= 80 else text[:77] + "…"
