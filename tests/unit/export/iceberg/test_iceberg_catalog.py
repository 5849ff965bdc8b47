"""The configured catalog: one address per destination, without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hypaware.export.sink import DestinationDenied, SinkSettings
from hypaware.export.sinks.iceberg import ICEBERG, read_catalog_settings
from hypaware.home import Home
from tests.support import processes

_LIGHT = """
import sys
from hypaware.export.sinks.iceberg import ICEBERG
from hypaware.export.sink import SinkSettings
from hypaware.home import Home


options = {"table": "team.messages", "catalog": {"type": "rest", "uri": "https://catalog.example/"}}
print(ICEBERG.address(SinkSettings("team", Home.from_environment(), options, ("x",), "g", "i")))
print(sorted(name for name in ("pyarrow", "pyspark", "py4j", "sqlalchemy", "aiohttp") if name in sys.modules))
"""


def address(**catalog: str) -> str:
    return ICEBERG.address(_settings(catalog))


def properties(catalog: dict[str, str], environment: dict[str, str] | None = None) -> dict[str, str]:
    return dict(read_catalog_settings(_settings(catalog).options, environment or {}).properties)


def _settings(catalog: dict[str, str]) -> SinkSettings:
    options: dict[str, Any] = {"table": "team.messages", "catalog": {"type": "jdbc", "warehouse": "/lake", **catalog}}
    return SinkSettings("team", Home(Path("/home")), options, ("ai_gateway_messages",), "gateway", "incarnation")


def test_the_address_of_an_iceberg_sink_needs_no_heavy_import(home: Home) -> None:
    message = processes.succeed(_LIGHT, home)
    assert message == "iceberg+rest:https://catalog.example#/team.messages\n[]\n"


@pytest.mark.hazard(87)
@pytest.mark.parametrize(
    "spellings",
    [
        [
            "sqlite:////data/catalog.db",
            "jdbc:sqlite:/data/catalog.db",
            "jdbc:sqlite:file:/data/catalog.db?cache=shared",
        ],
        [
            "postgresql://host/lake",
            "postgresql+psycopg2://someone:secret@host:5432/lake",
            "jdbc:postgresql://host:5432/lake?ssl=true",
            "postgres://host/lake",
        ],
    ],
)
def test_a_catalog_has_one_canonical_address(spellings: list[str]) -> None:
    message = {address(uri=uri) for uri in spellings}
    assert len(message) == 1
    assert "secret" not in message.pop()


def test_different_catalogs_names_and_tables_have_different_addresses() -> None:
    uri = "postgresql://host/lake"
    message = {
        address(uri=uri),
        address(uri=uri, name="team"),
        address(uri="postgresql://host/other"),
        address(uri="postgresql://host:5433/lake"),
        address(type="rest", uri="https://catalog.example"),
        address(type="rest", uri="https://catalog.example", warehouse="prod"),
        address(type="hive", uri="thrift://host:9083"),
        address(type="glue"),
    }
    assert len(message) == 8


def test_a_sqlite_catalog_waits_for_locks_and_survives_a_power_cut() -> None:
    found = properties({"uri": "sqlite:////data/a%20folder/catalog.db"})
    assert found["uri"] == "jdbc:sqlite:file:/data/a%20folder/catalog.db?busy_timeout=10000&synchronous=FULL"
    assert found["jdbc.schema-version"] == "V1"
    assert found["warehouse"] == "file:///lake"
    own = properties({"uri": "jdbc:sqlite:/data/catalog.db?synchronous=NORMAL"})
    assert own["uri"] == "jdbc:sqlite:file:/data/catalog.db?busy_timeout=10000&synchronous=NORMAL"


def test_user_and_password_are_properties_and_not_part_of_the_address() -> None:
    found = properties({"uri": "postgresql://some%40one:a%20secret@host/lake?ssl=true"})
    assert found["uri"] == "jdbc:postgresql://host:5432/lake?ssl=true"
    assert (found["jdbc.user"], found["jdbc.password"]) == ("some@one", "a secret")


def test_secrets_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from a file\n")
    given = {"jdbc_password_env": "TEAM_PASSWORD", "s3.secret-access-key_file": str(secret), "token_file": str(secret)}
    message = {"uri": "postgresql://host/lake", **given}
    found = properties(message, {"TEAM_PASSWORD": "from the environment"})
    assert found["jdbc.password"] == "from the environment"
    assert (found["s3.secret-access-key"], found["token"]) == ("from a file", "from a file")
    assert not any(key.endswith(("_env", "_file")) for key in found)
    assert "from" not in repr(read_catalog_settings(_settings({**message, "jdbc_password_env": "HOME"}).options))


def test_a_missing_secret_is_denied_by_name(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for given, message in (
        ({"jdbc_password_env": "TEAM_PASSWORD"}, "TEAM_PASSWORD, which is not set"),
        ({"jdbc_password_file": str(tmp_path / "none")}, "cannot be read: FileNotFoundError"),
        ({"jdbc_password_file": str(empty)}, "which is empty"),
    ):
        with pytest.raises(DestinationDenied, match=message):
            properties({"uri": "postgresql://host/lake", **given})


def test_other_keys_are_iceberg_properties() -> None:
    message = {"type": "rest", "uri": "https://catalog.example", "warehouse": "prod", "s3.endpoint": "http://store"}
    assert properties(message) == message


@pytest.mark.parametrize(
    ("catalog", "message"),
    [
        ({"uri": "sqlite:///catalog.db"}, "write the absolute path of the file"),
        ({"uri": "jdbc:sqlite::memory:"}, "write the absolute path of the file"),
        ({"uri": "sqlite://"}, "names no file: write the absolute path of the file"),
        ({"uri": "postgresql://host"}, "lacks a host or a database"),
        ({"uri": "mysql://host/lake"}, "not a JDBC address"),
        ({"uri": "postgresql://host/lake", "warehouse": ""}, "needs a warehouse"),
        ({"uri": "postgresql://host/lake", "warehouse": "lake"}, "absolute path"),
    ],
)
def test_an_invalid_catalog_is_denied_before_any_request(catalog: dict[str, str], message: str) -> None:
    with pytest.raises(DestinationDenied, match=message) as raised:
        properties(catalog)
    assert raised.value.kind == "destination_misconfigured"
