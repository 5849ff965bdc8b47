"""The settings of the configuration: for each one its type, its default and its description.

Durations are in seconds and sizes in bytes. All values are frozen; `edit.py` changes the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from hypaware.config import values
from hypaware.config.spark_settings import SPARK_SETTINGS
from hypaware.config.values import ValueType

VERSION = 1
DEFAULT_DATASETS = ("ai_gateway_messages",)
BUILT_IN_ENCODERS = ("parquet", "jsonl", "jsonl-zstd")
# Raw exchanges are kept for reprojection and are never exported.
LOCAL_DATASETS = ("ai_gateway_exchanges",)
# The retention of built-in datasets that have their own.
DATASET_DAYS = {"ai_gateway_exchanges": 14, "otel_logs": 30, "otel_metrics": 30, "otel_spans": 30}


@dataclass(frozen=True)
class Setting:
    kind: ValueType
    default: Any
    about: str
    required: bool = False


def _setting(kind: ValueType, default: Any, about: str) -> Any:
    return field(default=default, metadata={"setting": Setting(kind, default, about)})


def _required(kind: ValueType, about: str) -> Any:
    return field(metadata={"setting": Setting(kind, None, about, required=True)})


@dataclass(frozen=True, kw_only=True)
class UpstreamConfig:
    name: str = _required(values.NAME, "name of the upstream")
    base_url: str = _required(values.URL, "address that requests are forwarded to")
    path_prefix: str = _setting(values.PREFIX, "/", "requests under this path are forwarded to it")
    provider: str = _setting(values.TEXT, "", "API dialect of the upstream; its name if empty")
    strip_prefix: bool = _setting(values.FLAG, False, "remove the prefix before forwarding")


@dataclass(frozen=True)
class GatewayConfig:
    listen: str = _setting(values.LISTEN, "127.0.0.1:18521", "address of the gateway for clients")
    allowed_hosts: tuple[str, ...] = _setting(
        values.HOSTS, (), "names under which other machines may call the gateway; required to listen beyond loopback"
    )
    upstreams: tuple[UpstreamConfig, ...] = ()


@dataclass(frozen=True)
class ClientConfig:
    enabled: bool = _setting(values.FLAG, True, "record this client")
    history_from: str = _setting(values.MOMENT, "", "the daemon ignores older history; `hyp backfill` does not")


@dataclass(frozen=True)
class EngineConfig:
    master: str = _setting(values.NON_EMPTY, "local[*]", "Spark master: this machine, or a cluster")
    memory: str = _setting(values.MEMORY, "1g", "heap of the Spark driver")
    secret_file: str = _setting(values.TEXT, "", "file with the secret of the cluster (spark.authenticate.secret)")
    idle_timeout: float = _setting(values.DURATION, 900.0, "stop the engine after this time without a job")
    spark: Mapping[str, str] = field(
        default_factory=dict, metadata={"setting": Setting(SPARK_SETTINGS, {}, "further settings, passed to Spark")}
    )


@dataclass(frozen=True)
class LakeS3Config:
    endpoint: str = _setting(values.ENDPOINT, "", "address of the S3 server, unless Amazon's")
    region: str = _setting(values.TEXT, "", "region of the bucket")
    path_style: bool = _setting(values.FLAG, False, "put the bucket into the path, not into the host name")
    credentials: str = _setting(
        values.NON_EMPTY, "environment", "environment, or the path of a file with the credentials"
    )


@dataclass(frozen=True)
class LakeConfig:
    catalog: str | Mapping[str, str] = _setting(
        values.LAKE_CATALOG, "embedded", "catalog of the tables: in the home, or in PostgreSQL (type jdbc)"
    )
    warehouse: str = _setting(values.TEXT, "", "s3://bucket/prefix of the data files of a shared lake")
    state: str | Mapping[str, str] = _setting(
        values.LAKE_STATE, "embedded", "database of the state: in the home, or PostgreSQL, as the catalog"
    )
    s3: LakeS3Config = field(default_factory=LakeS3Config)

    @property
    def is_shared(self) -> bool:
        return self.catalog != "embedded" or self.state != "embedded" or bool(self.warehouse)

    def find_unsupported(self) -> UnsupportedSetting | None:
        """Return a setting that this version reads and cannot use, or None."""
        if not self.is_shared:
            return None
        if isinstance(self.catalog, str):
            key, default = ("lake.state", "embedded") if self.state != "embedded" else ("lake.warehouse", "")
            return UnsupportedSetting(key, default, f"{key} is for a shared lake, which needs lake.catalog too")
        if self.catalog["type"] != "jdbc" or not _is_postgresql(self.catalog["uri"]):
            reason = (
                "a shared lake needs a catalog of the type jdbc in PostgreSQL, which rejects a machine's commit after "
            )
            return UnsupportedSetting("lake.catalog", "embedded", f"{reason}another one has taken over")
        if isinstance(self.state, str):
            return UnsupportedSetting("lake.catalog", "embedded", "a shared catalog needs lake.state in its database")
        if _database(self.state["uri"]) != _database(self.catalog["uri"]):
            reason = "it must be in the same database as lake.catalog, whose lease guards it"
            return UnsupportedSetting("lake.state", "embedded", reason)
        if not self.warehouse.startswith("s3://") or not urlsplit(self.warehouse).path.strip("/"):
            reason = "a shared catalog needs lake.warehouse in an object store, such as s3://bucket/prefix"
            return UnsupportedSetting("lake.catalog", "embedded", reason)
        return None


@dataclass(frozen=True)
class UnsupportedSetting:
    key: str
    default: str
    """The value that is supported."""
    reason: str


def _database(uri: str) -> str:
    return uri.removeprefix("jdbc:").replace("postgres://", "postgresql://", 1)


def _is_postgresql(uri: str) -> bool:
    return _database(uri).startswith("postgresql://")


@dataclass(frozen=True)
class IndexConfig:
    text: bool = _setting(values.FLAG, True, "keep the text of rows in the index, for hyp search and hyp show")


@dataclass(frozen=True)
class PageConfig:
    enabled: bool = _setting(values.FLAG, True, "let the daemon serve the page of `hyp open`")
    listen: str = _setting(values.LOOPBACK, "127.0.0.1:4177", "address of the page; only this machine can reach it")


@dataclass(frozen=True)
class OtlpConfig:
    listen: str = _setting(
        values.LOOPBACK_OR_OFF, "", "address at which the daemon records telemetry over OTLP/HTTP; empty means off"
    )


@dataclass(frozen=True)
class UsageConfig:
    prices: str = _setting(values.TEXT, "", "file with your own prices, instead of those of the package")


@dataclass(frozen=True)
class FlushConfig:
    interval: float = _setting(values.DURATION, 120.0, "time between commits of the spool while the engine runs")
    cold_interval: float = _setting(values.DURATION, 900.0, "time between commits if the engine must be started")
    max_rows: int = _setting(values.integer(1), 100_000, "maximum number of rows in one commit")
    max_bytes: int = _setting(values.SIZE, 128 * 2**20, "maximum size of the spool segments in one commit")


@dataclass(frozen=True)
class RetentionConfig:
    default_days: int = _setting(values.integer(0), 0, "days to keep rows; 0 means forever")
    wait_for_sinks: bool = _setting(values.FLAG, True, "keep rows that a sink has not received")
    max_hold_days: int = _setting(values.integer(0), 30, "maximum number of days to wait for a sink")
    datasets: Mapping[str, int] = field(default_factory=lambda: dict(DATASET_DAYS))


@dataclass(frozen=True)
class MaintainConfig:
    interval: float = _setting(
        values.DURATION_OR_OFF, 3600.0, "how often the daemon and the server check whether maintenance is due"
    )
    budget: float = _setting(values.DURATION, 300.0, "start no further step after this time")
    quiet_hours: str = _setting(values.PERIOD, "", "no maintenance during this period, in local time")
    on_battery: bool = _setting(values.FLAG, False, "let the daemon run maintenance on battery power")


@dataclass(frozen=True)
class RedactionConfig:
    kept: bool = _setting(values.FLAG, False, "replace secrets in rows stored on this machine")
    exported: bool = _setting(values.FLAG, True, "replace secrets in exported rows")
    rules_off: tuple[str, ...] = _setting(values.SECRET_RULE_NAMES, (), "names of disabled secret rules")


@dataclass(frozen=True)
class PrivacyConfig:
    unknown_folder: str = _setting(values.PRIVACY_CLASS, "full", "privacy class of sessions whose folder is unknown")
    folders: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SinkConfig:
    kind: str
    schedule: str
    datasets: tuple[str, ...]
    options: Mapping[str, Any]
    """The settings of this kind (see SINK_KINDS). Those of a plugin's kind are as in the file."""


@dataclass(frozen=True)
class Config:
    version: int = VERSION
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    clients: Mapping[str, ClientConfig] = field(default_factory=dict)
    engine: EngineConfig = field(default_factory=EngineConfig)
    lake: LakeConfig = field(default_factory=LakeConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    page: PageConfig = field(default_factory=PageConfig)
    otlp: OtlpConfig = field(default_factory=OtlpConfig)
    usage: UsageConfig = field(default_factory=UsageConfig)
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
            "url": Setting(values.SERVER_URL, None, "address of the server, without /v1", required=True),
            "token_file": Setting(values.TEXT, "", "file with the bootstrap token or a signed token"),
            "token_env": Setting(values.TEXT, "", "environment variable with the token"),
        },
    ),
    "blob": SinkKind(
        "as files to a folder or an object store",
        schedule="*/5 * * * *",
        options={
            "destination": Setting(values.DESTINATION, None, "folder, s3://, gs:// or az:// address", required=True),
            "encoder": Setting(values.NAME, "parquet", "file format: parquet, jsonl, jsonl-zstd, or a plugin's"),
            "endpoint": Setting(
                values.TEXT, "", "s3: server address, unless Amazon's; https unless it starts with http://"
            ),
            "region": Setting(values.TEXT, "", "s3: region of the bucket"),
            "access_key_env": Setting(values.TEXT, "", "s3: environment variable with the access key"),
            "secret_key_env": Setting(values.TEXT, "", "s3: environment variable with its secret"),
        },
    ),
    "iceberg": SinkKind(
        "into a table of another lake",
        schedule="*/5 * * * *",
        options={
            "table": Setting(values.NON_EMPTY, None, "namespace.table", required=True),
            "catalog": Setting(values.CATALOG, None, "catalog of that table", required=True),
        },
        one_dataset=True,
    ),
}
SINK_COMMON: Mapping[str, Setting] = {
    "kind": Setting(
        replace(values.NAME, example='"blob"'), None, "forward, blob, iceberg, or a plugin's", required=True
    ),
    "schedule": Setting(values.SCHEDULE, None, "delivery schedule: cron, UTC"),
    "datasets": Setting(values.NAMES, DEFAULT_DATASETS, "datasets to deliver"),
}
