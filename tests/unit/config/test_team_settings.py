"""The settings of a lake that is not on this machine alone, and those that are passed to Spark."""

from __future__ import annotations

import pytest

from hypaware import config
from hypaware.config.edit import get_value, set_value, to_toml
from hypaware.config.schema import LakeConfig, LakeS3Config
from hypaware.errors import ConfigError
from hypaware.home import Home
from tests.unit.config.conftest import Write

_TEAM = """
[engine]
master = "spark://host:7077"
[engine.spark]
"spark.executor.instances" = "4"
"spark.executor.cores" = 2
"spark.dynamicAllocation.enabled" = false
"spark.driver.host" = "10.0.0.7"
[lake]
catalog = { type = "jdbc", uri = "postgresql://db.example:5432/hyp", user = "hyp", password_env = "HYP_DB_PASSWORD" }
warehouse = "s3://bucket/prefix"
state = { uri = "postgresql://db.example:5432/hyp", user = "hyp", password_env = "HYP_DB_PASSWORD" }
[lake.s3]
endpoint = "http://127.0.0.1:9000"
region = "eu-central-1"
path_style = true
credentials = "/etc/hypaware/s3"
"""


def _refusal(home: Home) -> str:
    with pytest.raises(ConfigError) as told:
        config.load(home)
    return told.value.message


def test_the_settings_of_a_team_are_read(write: Write) -> None:
    found = config.load(write(_TEAM))
    assert found.engine.spark == {
        "spark.executor.instances": "4",
        "spark.executor.cores": "2",
        "spark.dynamicAllocation.enabled": "false",
        "spark.driver.host": "10.0.0.7",
    }
    address = {"uri": "postgresql://db.example:5432/hyp", "user": "hyp", "password_env": "HYP_DB_PASSWORD"}
    assert found.lake.state == address
    assert found.lake.catalog == {"type": "jdbc", **address}
    assert found.lake.s3 == LakeS3Config("http://127.0.0.1:9000", "eu-central-1", True, "/etc/hypaware/s3")


def test_without_settings_the_profile_is_embedded(home: Home) -> None:
    found = config.load(home)
    assert (found.lake, found.engine.spark) == (LakeConfig(), {})
    assert (found.lake.state, found.lake.s3) == ("embedded", LakeS3Config("", "", False, "environment"))
    assert found.lake.find_unsupported() is None


def test_a_config_that_is_shown_can_be_read_again(write: Write) -> None:
    found = config.load(write(_TEAM))
    assert config.load(write(to_toml(found))) == found


def test_a_setting_of_spark_is_set_and_shown_by_its_name_in_quotes(home: Home) -> None:
    set_value(home, 'engine.spark."spark.executor.cores"', "2")
    set_value(home, "lake.s3.credentials", "environment")
    found = config.load(home)
    assert get_value(found, 'engine.spark."spark.executor.cores"') == "2"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("spark.master", "engine.master"),
        ("spark.driver.memory", "engine.memory"),
        ("spark.sql.catalog.hyp.uri", "[lake]"),
        ("spark.sql.session.timeZone", "UTC"),
        ("spark.jars.packages", "hashes"),
        ("spark.ui.enabled", "no sign-in"),
        ("spark.driver.bindAddress", "loopback"),
        ("executor.cores", "begin with"),
    ],
)
def test_a_setting_that_hypaware_depends_on_is_refused_with_the_reason(write: Write, name: str, reason: str) -> None:
    message = _refusal(write(f'[engine.spark]\n"{name}" = "x"\n'))
    assert "engine.spark" in message
    assert name in message
    assert reason in message


@pytest.mark.parametrize(
    "name",
    [
        "spark.authenticate.secret",
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.ssl.keyStorePassword",
        "spark.sql.catalog.other.token",
    ],
)
def test_a_secret_among_the_settings_of_spark_is_rejected_and_never_printed(write: Write, name: str) -> None:
    message = _refusal(write(f'[engine.spark]\n"{name}" = "hunter2"\n'))
    assert name in message
    assert "must not contain secrets" in message
    assert "hunter2" not in message


def test_a_file_with_a_secret_may_be_named(write: Write) -> None:
    name = "spark.kubernetes.authenticate.submission.oauthTokenFile"
    assert config.load(write(f'[engine.spark]\n"{name}" = "/run/token"\n')).engine.spark == {name: "/run/token"}


def test_a_name_without_quotes_is_explained(write: Write) -> None:
    assert "in quotes" in _refusal(write("[engine.spark]\nspark.executor.cores = 2\n"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('"postgresql://db.example/hyp"', "a table"),
        ('{ user = "hyp" }', "postgresql://host:port/database"),
        ('{ uri = "mysql://db.example/hyp" }', "postgresql://host:port/database"),
        ('{ uri = "postgresql://db.example" }', "postgresql://host:port/database"),
        ('{ uri = "postgresql://hyp@db.example/hyp" }', "write it as user"),
        ('{ uri = "postgresql://hyp:hunter2@db.example/hyp" }', "*_env"),
        ('{ uri = "postgresql://db.example/hyp", password = "hunter2" }', "must not contain secrets"),
        ('{ uri = "postgresql://db.example/hyp", pasword_env = "A" }', "password_env"),
    ],
)
def test_an_address_of_the_state_that_cannot_be_used_is_explained(write: Write, value: str, reason: str) -> None:
    message = _refusal(write(f"[lake]\nstate = {value}\n"))
    assert "lake.state" in message
    assert reason in message
    assert "hunter2" not in message


@pytest.mark.parametrize("endpoint", ["s3.example", "ftp://s3.example", "https://key:hunter2@s3.example"])
def test_an_endpoint_must_be_an_http_address(write: Write, endpoint: str) -> None:
    message = _refusal(write(f'[lake.s3]\nendpoint = "{endpoint}"\n'))
    assert "lake.s3.endpoint" in message
    assert "hunter2" not in message
