"""Deliver rows to an Iceberg table of another lake: each chunk is one commit that also records its range.

This module reads the configured catalog: its Iceberg properties and its canonical address.

Config keys in addition to `type` and `uri`:

- `name`: the name of the catalog, `default` if not set. A JDBC catalog stores its tables under this name, so every
  other reader must use the same one (`SqlCatalog("default", …)` in PyIceberg).
- `warehouse`: the location of a JDBC catalog's tables; for a REST catalog, the name of one of its warehouses.
- `<property>_file`, `<property>_env`: the source of a secret, as in `jdbc_password_env = "TEAM_PASSWORD"`.
- any other key is an Iceberg property and is passed on unchanged (`jdbc.user`, `io-impl`, `s3.endpoint`, …).

The uri of a JDBC catalog may have the form of JDBC or that of SQLAlchemy: `postgresql://host/database`,
`sqlite:////folder/catalog.db`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from hypaware.export.sink import DestinationDenied, Sink, SinkSettings, SinkType

# Wait for other writers; commits survive a power cut.
_SQLITE_SETTINGS = {"busy_timeout": "10000", "synchronous": "FULL"}
# Keys with `_env` and `_file` consist of letters, digits and _; these are the properties they stand for.
_SECRETS = ("jdbc.password", "s3.access-key-id", "s3.secret-access-key", "s3.session-token", "gcs.oauth2.token")
_SPELLINGS = {name.replace(".", "_").replace("-", "_"): name for name in _SECRETS}


@dataclass(frozen=True)
class CatalogSettings:
    name: str
    properties: Mapping[str, str] = field(repr=False)


def table_address(settings: SinkSettings) -> str:
    """Return the canonical address of the table, without user and password. Uses no network."""
    catalog = settings.options["catalog"]
    kind = catalog["type"]
    uri = str(catalog.get("uri", "")).rstrip("/")
    if kind == "jdbc":
        where, within = _parse_jdbc(uri).address, _catalog_name(catalog)
    else:
        where, within = _without_user(uri), str(catalog.get("warehouse", ""))
    return f"iceberg+{kind}:{where}#{within}/{settings.options['table']}"


def read_catalog_settings(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> CatalogSettings:
    """Read the catalog's settings and secrets. Raises DestinationDenied if they cannot work."""
    properties = dict(
        _resolve_property(str(key), str(value), environment)
        for key, value in options["catalog"].items()
        if key != "name"
    )
    if properties["type"] == "jdbc":
        found = _parse_jdbc(properties["uri"])
        properties |= {"uri": found.uri, "warehouse": _normalise_warehouse(properties.get("warehouse", ""))}
        properties = {"jdbc.schema-version": "V1", **found.properties, **properties}
    return CatalogSettings(_catalog_name(options["catalog"]), properties)


@dataclass(frozen=True)
class _JdbcAddress:
    uri: str
    address: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)


def _parse_jdbc(uri: str) -> _JdbcAddress:
    scheme, _, rest = uri.removeprefix("jdbc:").partition(":")
    scheme = scheme.partition("+")[0]
    if scheme == "sqlite":
        path, _, query = rest.partition("?")
        if not uri.startswith("jdbc:"):
            # Three slashes precede a relative path; a fourth makes it absolute.
            path = unquote(path[3:]) if path.startswith("///") else ""
        elif path.startswith("file:"):
            path = unquote(path.removeprefix("file:"))
        if not path.startswith("/") or path.endswith("/"):
            raise _misconfigured(f"the catalog's uri names {path or 'no file'}: write the absolute path of the file")
        path = "/" + path.lstrip("/")
        settings = {**_SQLITE_SETTINGS, **dict(part.partition("=")[::2] for part in query.split("&") if part)}
        parameters = "&".join(f"{key}={value}" for key, value in settings.items())
        return _JdbcAddress(f"jdbc:sqlite:file:{quote(path)}?{parameters}", f"sqlite:///{path}")
    if scheme in ("postgresql", "postgres"):
        parts = urlsplit(f"postgresql:{rest}")
        hosts = parts.netloc.rpartition("@")[2]
        if not hosts or not parts.path.strip("/"):
            raise _misconfigured("the catalog's uri lacks a host or a database; write postgresql://host/database")
        default_port = ""
        with suppress(ValueError):
            default_port = ":5432" if parts.port is None and "," not in hosts else ""
        where = f"postgresql://{hosts}{default_port}{parts.path}"
        login = {"jdbc.user": parts.username, "jdbc.password": parts.password}
        properties = {key: unquote(value) for key, value in login.items() if value}
        return _JdbcAddress(f"jdbc:{where}{'?' + parts.query if parts.query else ''}", where, properties)
    if not uri.startswith("jdbc:"):
        raise _misconfigured(f"the catalog's uri begins with {scheme}:, which is not a JDBC address")
    return _JdbcAddress(uri, _without_user(uri))


def _normalise_warehouse(warehouse: str) -> str:
    if not warehouse:
        raise _misconfigured("a JDBC catalog needs a warehouse: the folder or s3:// address of its tables")
    if "://" in warehouse or warehouse.startswith("file:/"):
        return warehouse
    if not warehouse.startswith("/"):
        raise _misconfigured(f"the catalog's warehouse is {warehouse}: write the absolute path of the folder")
    return f"file://{warehouse}"


def _resolve_property(key: str, value: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return a property and its value, read from the environment or a file if the key says so."""
    stem, underscore, ending = key.rpartition("_")
    if not underscore or ending not in ("env", "file"):
        return key, value
    if ending == "env":
        found = environment.get(value)
        if not found:
            raise DestinationDenied(
                f"{key} names the environment variable {value}, which is not set in the engine's environment",
                kind="no_credentials",
                repair=f"export {value}=… && hyp engine stop",
            )
        return _SPELLINGS.get(stem, stem), found
    path = Path(value).expanduser()
    try:
        found = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DestinationDenied(
            f"{key} names {path}, which cannot be read: {type(error).__name__}", kind="no_credentials"
        ) from None
    if not found:
        raise DestinationDenied(f"{key} names {path}, which is empty", kind="no_credentials")
    return _SPELLINGS.get(stem, stem), found


def _catalog_name(catalog: Mapping[str, Any]) -> str:
    return str(catalog.get("name") or "default")


def _without_user(uri: str) -> str:
    before, at, after = uri.rpartition("@")
    scheme, slashes, _ = before.partition("://")
    return f"{scheme}{slashes}{after}" if at and slashes else uri


def _misconfigured(message: str) -> DestinationDenied:
    return DestinationDenied(message, kind="destination_misconfigured", repair="hyp config show")


def _make(settings: SinkSettings) -> Sink:
    from hypaware.export.sinks.iceberg.iceberg_sink import IcebergSink

    return IcebergSink(settings)


ICEBERG = SinkType("iceberg", "a table of another lake", table_address, _make)
