"""The configuration, typed. Each setting stands here once: its kind of value, its default, what it is for.

Durations are seconds, sizes bytes. Everything is a frozen value; `edit.py` changes the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypaware.config import values
from hypaware.config.values import Kind

VERSION = 1
DEFAULT_DATASETS = ("ai_gateway_messages",)
BUILT_IN_CLIENTS = ("claude", "codex")
BUILT_IN_ENCODERS = ("parquet", "jsonl", "jsonl-zstd")
# Raw bodies, kept a while to decode them again: no destination has a place for them.
LOCAL_DATASETS = ("ai_gateway_exchanges",)


@dataclass(frozen=True)
class Setting:
    kind: Kind
    default: Any
    about: str
    required: bool = False


def _setting(kind: Kind, default: Any, about: str) -> Any:
    return field(default=default, metadata={"setting": Setting(kind, default, about)})


def _required(kind: Kind, about: str) -> Any:
    return field(metadata={"setting": Setting(kind, None, about, required=True)})


@dataclass(frozen=True, kw_only=True)
class UpstreamConfig:
    name: str = _required(values.NAME, "what to call it")
    base_url: str = _required(values.URL, "where requests go")
    path_prefix: str = _setting(values.PREFIX, "/", "requests under this path go there")
    provider: str = _setting(values.TEXT, "", "whose dialect it speaks; its name if empty")
    strip_prefix: bool = _setting(values.FLAG, False, "take the prefix off before sending")


@dataclass(frozen=True)
class GatewayConfig:
    listen: str = _setting(values.LISTEN, "127.0.0.1:18521", "where clients reach the gateway")
    upstreams: tuple[UpstreamConfig, ...] = ()


@dataclass(frozen=True)
class ClientConfig:
    enabled: bool = _setting(values.FLAG, True, "record this client")
    history_from: str = _setting(values.MOMENT, "", "the daemon leaves out what is older; `hyp backfill` does not")


@dataclass(frozen=True)
class EngineConfig:
    master: str = _setting(values.FILLED, "local[*]", "Spark master: this machine, or a cluster")
    memory: str = _setting(values.MEMORY, "1g", "heap of the Spark driver")
    idle_timeout: float = _setting(values.DURATION, 900.0, "the engine stops after so long without a job")


@dataclass(frozen=True)
class LakeConfig:
    catalog: str | Mapping[str, str] = _setting(
        values.LAKE_CATALOG, "embedded", "where the tables are registered: embedded only, so far"
    )
    warehouse: str = _setting(values.TEXT, "", "where the data files lie: below the home only, so far")


@dataclass(frozen=True)
class FlushConfig:
    interval: float = _setting(values.DURATION, 120.0, "commit the spool this often while the engine runs")
    cold_interval: float = _setting(values.DURATION, 900.0, "and this often when it had to be started for it")
    max_rows: int = _setting(values.whole(1), 100_000, "rows in one commit")
    max_bytes: int = _setting(values.SIZE, 128 * 2**20, "bytes of spool in one commit")


@dataclass(frozen=True)
class RetentionConfig:
    default_days: int = _setting(values.whole(0), 0, "keep rows so long; 0 is for ever")
    wait_for_sinks: bool = _setting(values.FLAG, True, "keep what a sink has not had yet")
    max_hold_days: int = _setting(values.whole(0), 30, "but wait for it no longer than this")
    datasets: Mapping[str, int] = field(default_factory=lambda: {"ai_gateway_exchanges": 14})


@dataclass(frozen=True)
class MaintainConfig:
    interval: float = _setting(
        values.DURATION_OR_OFF, 3600.0, "daemon and server look this often whether anything is due"
    )
    budget: float = _setting(values.DURATION, 300.0, "nothing new is begun after it has taken so long")
    quiet_hours: str = _setting(values.HOURS, "", "not at this time of the day, by the machine's clock")
    on_battery: bool = _setting(values.FLAG, False, "the daemon also while the machine runs on its battery")


@dataclass(frozen=True)
class RedactionConfig:
    kept: bool = _setting(values.FLAG, False, "replace secrets also in what is kept on this machine")
    exported: bool = _setting(values.FLAG, True, "replace secrets in what a sink gets")
    rules_off: tuple[str, ...] = _setting(values.RULES, (), "rules that are not to look for secrets")


@dataclass(frozen=True)
class PrivacyConfig:
    unknown_folder: str = _setting(values.PRIVACY_CLASS, "full", "how far work goes whose folder is not known")
    folders: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SinkConfig:
    kind: str
    schedule: str
    datasets: tuple[str, ...]
    options: Mapping[str, Any]
    """The settings of this kind, see SINK_KINDS; those of a plugin's kind as they stand in the file."""


@dataclass(frozen=True)
class Config:
    version: int = VERSION
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    clients: Mapping[str, ClientConfig] = field(default_factory=dict)
    engine: EngineConfig = field(default_factory=EngineConfig)
    lake: LakeConfig = field(default_factory=LakeConfig)
    flush: FlushConfig = field(default_factory=FlushConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    maintain: MaintainConfig = field(default_factory=MaintainConfig)
    redaction: RedactionConfig = field(default_factory=RedactionConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    sinks: Mapping[str, SinkConfig] = field(default_factory=dict)


@dataclass(frozen=True)
class SinkKind:
    about: str
    schedule: str
    options: Mapping[str, Setting]
    one_dataset: bool = False


SINK_KINDS: Mapping[str, SinkKind] = {
    "forward": SinkKind(
        "to a HypAware server",
        schedule="* * * * *",
        options={
            "url": Setting(values.SERVER_URL, None, "the server, without /v1", required=True),
            "token_file": Setting(values.TEXT, "", "file with the bootstrap token or a signed token"),
            "token_env": Setting(values.TEXT, "", "environment variable with the token"),
        },
    ),
    "blob": SinkKind(
        "as files to a folder or an object store",
        schedule="*/5 * * * *",
        options={
            "destination": Setting(values.FILLED, None, "folder, s3://, gs:// or az:// address", required=True),
            "encoder": Setting(values.NAME, "parquet", "file format: parquet, jsonl, jsonl-zstd, or a plugin's"),
            "endpoint": Setting(
                values.TEXT, "", "s3: the server, where it is not Amazon's; http:// only if written so"
            ),
            "region": Setting(values.TEXT, "", "s3: the bucket's region"),
            "access_key_env": Setting(values.TEXT, "", "s3: environment variable with the access key"),
            "secret_key_env": Setting(values.TEXT, "", "s3: environment variable with its secret"),
        },
    ),
    "iceberg": SinkKind(
        "into a table of another lake",
        schedule="*/5 * * * *",
        options={
            "table": Setting(values.FILLED, None, "namespace.table", required=True),
            "catalog": Setting(values.CATALOG, None, "where that table is registered", required=True),
        },
        one_dataset=True,
    ),
}
SINK_COMMON: Mapping[str, Setting] = {
    "kind": Setting(
        replace(values.NAME, example='"blob"'), None, "forward, blob, iceberg, or a plugin's", required=True
    ),
    "schedule": Setting(values.SCHEDULE, None, "when to deliver: cron, UTC"),
    "datasets": Setting(values.NAMES, DEFAULT_DATASETS, "what to deliver"),
}
