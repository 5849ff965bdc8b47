"""The destination's catalog as the config names it: one address for one destination, no secret in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hypaware.export.sink import Denied, SinkSettings
from hypaware.export.sinks.iceberg import ICEBERG
from hypaware.export.sinks.iceberg.catalog import settings_of
from hypaware.home import Home
from tests import processes

_LIGHT = """
import sys
from hypaware.export.sink import SinkSettings
from hypaware.export.sinks.iceberg import ICEBERG
from hypaware.home import Home
options = {"table": "team.messages", "catalog": {"type": "rest", "uri": "https://catalog.example/"}}
print(ICEBERG.address(SinkSettings("team", Home.from_environment(), options, ("x",), "g", "i")))
print(sorted(name for name in ("pyarrow", "pyspark", "py4j", "sqlalchemy", "aiohttp") if name in sys.modules))
"""


def address(**catalog: str) -> str:
    return ICEBERG.address(_settings(catalog))


def properties(catalog: dict[str, str], environment: dict[str, str] | None = None) -> dict[str, str]:
    return dict(settings_of(_settings(catalog).options, environment or {}).properties)


def _settings(catalog: dict[str, str]) -> SinkSettings:
    options: dict[str, Any] = {"table": "team.messages", "catalog": {"type": "jdbc", "warehouse": "/lake", **catalog}}
    return SinkSettings("team", Home(Path("/home")), options, ("ai_gateway_messages",), "gateway", "incarnation")


def test_an_address_is_told_without_loading_anything_heavy(home: Home) -> None:
    told = processes.succeed(_LIGHT, home)
    assert told == "iceberg+rest:https://catalog.example#/team.messages\n[]\n"


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
def test_one_catalog_has_one_address_however_it_is_spelled(spellings: list[str]) -> None:
    told = {address(uri=uri) for uri in spellings}
    assert len(told) == 1
    assert "secret" not in told.pop()


def test_other_catalogs_names_and_tables_have_other_addresses() -> None:
    uri = "postgresql://host/lake"
    told = {
        address(uri=uri),
        address(uri=uri, name="team"),
        address(uri="postgresql://host/other"),
        address(uri="postgresql://host:5433/lake"),
        address(type="rest", uri="https://catalog.example"),
        address(type="rest", uri="https://catalog.example", warehouse="prod"),
        address(type="hive", uri="thrift://host:9083"),
        address(type="glue"),
    }
    assert len(told) == 8


def test_a_catalog_on_sqlite_waits_for_its_turn_and_survives_a_power_cut() -> None:
    found = properties({"uri": "sqlite:////data/a%20folder/catalog.db"})
    assert found["uri"] == "jdbc:sqlite:file:/data/a%20folder/catalog.db?busy_timeout=10000&synchronous=FULL"
    assert found["jdbc.schema-version"] == "V1"
    assert found["warehouse"] == "file:///lake"
    own = properties({"uri": "jdbc:sqlite:/data/catalog.db?synchronous=NORMAL"})
    assert own["uri"] == "jdbc:sqlite:file:/data/catalog.db?busy_timeout=10000&synchronous=NORMAL"


def test_user_and_password_travel_as_properties_and_not_in_the_address_that_is_logged() -> None:
    found = properties({"uri": "postgresql://some%40one:a%20secret@host/lake?ssl=true"})
    assert found["uri"] == "jdbc:postgresql://host:5432/lake?ssl=true"
    assert (found["jdbc.user"], found["jdbc.password"]) == ("some@one", "a secret")


def test_secrets_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from a file\n")
    given = {"jdbc_password_env": "TEAM_PASSWORD", "s3.secret-access-key_file": str(secret), "token_file": str(secret)}
    told = {"uri": "postgresql://host/lake", **given}
    found = properties(told, {"TEAM_PASSWORD": "from the environment"})
    assert found["jdbc.password"] == "from the environment"
    assert (found["s3.secret-access-key"], found["token"]) == ("from a file", "from a file")
    assert not any(key.endswith(("_env", "_file")) for key in found)
    assert "from" not in repr(settings_of(_settings({**told, "jdbc_password_env": "HOME"}).options))


def test_a_secret_that_is_not_there_is_denied_by_name(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for given, told in (
        ({"jdbc_password_env": "TEAM_PASSWORD"}, "TEAM_PASSWORD, which is not set"),
        ({"jdbc_password_file": str(tmp_path / "none")}, "cannot be read: FileNotFoundError"),
        ({"jdbc_password_file": str(empty)}, "which is empty"),
    ):
        with pytest.raises(Denied, match=told):
            properties({"uri": "postgresql://host/lake", **given})


def test_anything_else_is_a_property_of_iceberg() -> None:
    told = {"type": "rest", "uri": "https://catalog.example", "warehouse": "prod", "s3.endpoint": "http://store"}
    assert properties(told) == told


@pytest.mark.parametrize(
    ("catalog", "told"),
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
def test_what_can_never_work_is_denied_before_anything_is_asked(catalog: dict[str, str], told: str) -> None:
    with pytest.raises(Denied, match=told) as raised:
        properties(catalog)
    assert raised.value.kind == "destination_misconfigured"
