"""The destination's catalog as the config names it: its properties for Iceberg, and its address in one spelling.

In the config, beside `type` and `uri`:

- `name`: what the catalog calls itself, `default` if it is not said. A JDBC catalog keeps its tables under this name:
  who opens it with another reader (`SqlCatalog("default", …)` in PyIceberg) gives the same one.
- `warehouse`: where a JDBC catalog puts its tables; for a REST catalog, which of its warehouses.
- `<property>_file`, `<property>_env`: where a secret is found, as in `jdbc_password_env = "TEAM_PASSWORD"`.
- anything else is a property of Iceberg and passed on as it is (`jdbc.user`, `io-impl`, `s3.endpoint`, …).

A JDBC catalog's uri may be written as JDBC wants it or as Python's database layer does: `postgresql://host/database`,
`sqlite:////folder/catalog.db`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from hypaware.export.sink import Denied

if TYPE_CHECKING:
    from hypaware.export.sink import SinkSettings

_DEFAULT_NAME = "default"
_POSTGRES_PORT = 5432
# Another writer's turn is waited for; what is committed survives a power cut.
_SQLITE_SETTINGS = {"busy_timeout": "10000", "synchronous": "FULL"}
# The config keeps to names of letters, digits and _ where it tells how to write down a secret.
_SECRETS = ("jdbc.password", "s3.access-key-id", "s3.secret-access-key", "s3.session-token", "gcs.oauth2.token")
_SPELLINGS = {name.replace(".", "_").replace("-", "_"): name for name in _SECRETS}


@dataclass(frozen=True)
class CatalogSettings:
    """What Iceberg needs to open it."""

    name: str
    properties: Mapping[str, str] = field(repr=False)


def address_of(settings: SinkSettings) -> str:
    """Asks nobody; holds no user and no password."""
    catalog = settings.options["catalog"]
    kind = catalog["type"]
    uri = str(catalog.get("uri", "")).rstrip("/")
    if kind == "jdbc":
        where, within = _jdbc(uri).address, _name(catalog)
    else:
        where, within = _without_user(uri), str(catalog.get("warehouse", ""))
    return f"iceberg+{kind}:{where}#{within}/{settings.options['table']}"


def settings_of(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> CatalogSettings:
    """Raises Denied where what the config says can never work."""
    told = {str(key): str(value) for key, value in options["catalog"].items()}
    name = _name(told)
    told.pop("name", None)
    properties = {}
    for key, value in told.items():
        property_name, found = _resolved(key, value, environment)
        properties[property_name] = found
    if properties["type"] == "jdbc":
        found_jdbc = _jdbc(properties["uri"])
        properties |= {"uri": found_jdbc.uri, "warehouse": _local_or_remote(properties.get("warehouse", ""))}
        properties = {"jdbc.schema-version": "V1", **found_jdbc.properties, **properties}
    return CatalogSettings(name, properties)


@dataclass(frozen=True)
class _Jdbc:
    uri: str
    address: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)


def _jdbc(uri: str) -> _Jdbc:
    scheme, _, rest = uri.removeprefix("jdbc:").partition(":")
    scheme = scheme.partition("+")[0]
    if scheme == "sqlite":
        return _sqlite(rest, is_jdbc=uri.startswith("jdbc:"))
    if scheme in ("postgresql", "postgres"):
        return _postgres(rest)
    if not uri.startswith("jdbc:"):
        raise _misconfigured(f"the catalog's uri begins with {scheme}:, which is no JDBC address")
    return _Jdbc(uri, _without_user(uri))


def _sqlite(rest: str, is_jdbc: bool) -> _Jdbc:
    path, _, query = rest.partition("?")
    if not is_jdbc:
        # After three slashes: a path from here, or with a fourth, a whole one.
        path = unquote(path[3:]) if path.startswith("///") else ""
    elif path.startswith("file:"):
        path = unquote(path.removeprefix("file:"))
    if not path.startswith("/") or path.endswith("/"):
        raise _misconfigured(f"the catalog's uri names {path or 'no file'}: write the file's whole path")
    path = "/" + path.lstrip("/")
    settings = {**_SQLITE_SETTINGS, **dict(part.partition("=")[::2] for part in query.split("&") if part)}
    asked = "&".join(f"{key}={value}" for key, value in settings.items())
    return _Jdbc(f"jdbc:sqlite:file:{quote(path)}?{asked}", f"sqlite:///{path}")


def _postgres(rest: str) -> _Jdbc:
    parts = urlsplit(f"postgresql:{rest}")
    hosts = parts.netloc.rpartition("@")[2]
    if not hosts or not parts.path.strip("/"):
        raise _misconfigured("the catalog's uri names no host or no database: postgresql://host/database")
    try:
        default_port = f":{_POSTGRES_PORT}" if parts.port is None and "," not in hosts else ""
    except ValueError:
        default_port = ""
    where = f"postgresql://{hosts}{default_port}{parts.path}"
    said = {"jdbc.user": parts.username, "jdbc.password": parts.password}
    given = {key: unquote(value) for key, value in said.items() if value}
    return _Jdbc(f"jdbc:{where}{'?' + parts.query if parts.query else ''}", where, given)


def _local_or_remote(warehouse: str) -> str:
    if not warehouse:
        raise _misconfigured("a JDBC catalog needs a warehouse: the folder or the s3:// address where its tables lie")
    if "://" in warehouse or warehouse.startswith("file:/"):
        return warehouse
    if not warehouse.startswith("/"):
        raise _misconfigured(f"the catalog's warehouse is {warehouse}: write the folder's whole path")
    return f"file://{warehouse}"


def _resolved(key: str, value: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """A property and its value, where the key says that it stands elsewhere."""
    for ending, look in (("_env", _from_environment), ("_file", _from_file)):
        if key.endswith(ending):
            stem = key.removesuffix(ending)
            return _SPELLINGS.get(stem, stem), look(key, value, environment)
    return key, value


def _from_environment(key: str, name: str, environment: Mapping[str, str]) -> str:
    if found := environment.get(name):
        return found
    raise Denied(
        f"{key} names the environment variable {name}, which is not set where the engine runs",
        kind="no_credentials",
        repair=f"export {name}=… && hyp engine stop",
    )


def _from_file(key: str, name: str, _environment: Mapping[str, str]) -> str:
    path = Path(name).expanduser()
    try:
        found = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Denied(
            f"{key} names {path}, which cannot be read: {type(error).__name__}", kind="no_credentials"
        ) from None
    if not found:
        raise Denied(f"{key} names {path}, which is empty", kind="no_credentials")
    return found


def _name(catalog: Mapping[str, Any]) -> str:
    return str(catalog.get("name") or _DEFAULT_NAME)


def _without_user(uri: str) -> str:
    before, at, after = uri.rpartition("@")
    scheme, slashes, _ = before.partition("://")
    return f"{scheme}{slashes}{after}" if at and slashes else uri


def _misconfigured(message: str) -> Denied:
    return Denied(message, kind="destination_misconfigured", repair="hyp config show")
