from __future__ import annotations

import json
import tomllib
from collections.abc import Callable

import pytest

from hypaware.home import Home

Ran = tuple[int, str, str]
Hyp = Callable[..., Ran]


def test_show_prints_every_setting_as_valid_toml(hyp: Hyp) -> None:
    code, out, _ = hyp("config", "show")

    assert code == 0
    assert tomllib.loads(out)["flush"]["interval"] == "2m"


def test_show_json_has_the_path_and_the_effective_settings(hyp: Hyp, home: Home) -> None:
    hyp("config", "set", "flush.interval", "5m")

    shown = json.loads(hyp("config", "show", "--json")[1])

    assert shown["path"] == str(home.config)
    assert shown["exists"] is True
    assert shown["config"]["flush"] == {
        "interval": "5m",
        "cold_interval": "15m",
        "max_rows": 100000,
        "max_bytes": "128MiB",
    }


def test_path_is_printed_without_creating_anything(hyp: Hyp, home: Home) -> None:
    assert hyp("config", "path") == (0, f"{home.config}\n", "")
    assert json.loads(hyp("config", "path", "--json")[1]) == {"path": str(home.config), "exists": False}
    assert not home.root.exists()


def test_validate_accepts_a_missing_file_and_a_valid_one(hyp: Hyp, home: Home) -> None:
    assert hyp("config", "validate")[0] == 0
    hyp("config", "set", "flush.interval", "5m")
    assert json.loads(hyp("config", "validate", "--json")[1]) == {
        "path": str(home.config),
        "exists": True,
        "ok": True,
    }


def test_validate_reports_the_key_the_line_and_a_suggestion(hyp: Hyp, home: Home) -> None:
    home.root.mkdir()
    home.config.write_text('version = 1\n[flush]\nintervall = "5m"\n')

    code, out, err = hyp("config", "validate")
    assert (code, out) == (1, "")
    assert err == (f"error: {home.config}, line 3: unknown key flush.intervall. Did you mean flush.interval?\n")

    code, out, _ = hyp("config", "validate", "--json")
    assert code == 1
    assert json.loads(out)["error"]["kind"] == "config"


def test_set_reports_the_value_before_and_after(hyp: Hyp, home: Home) -> None:
    code, out, _ = hyp("config", "set", "retention.default_days", "30", "--json")

    assert code == 0
    assert json.loads(out) == {
        "path": str(home.config),
        "key": "retention.default_days",
        "before": 0,
        "after": 30,
    }


def test_set_rejects_an_invalid_value(hyp: Hyp, home: Home) -> None:
    code, _, err = hyp("config", "set", "flush.interval", "never")

    assert code == 1
    assert err.startswith('error: flush.interval is "never"')
    assert not home.config.exists()


def test_version_has_everything_that_a_bug_report_needs(hyp: Hyp) -> None:
    code, out, _ = hyp("version", "--json")

    found = json.loads(out)
    assert code == 0
    assert list(found) == ["hypaware", "python", "java", "spark", "iceberg", "platform"]
    assert found["spark"]


def test_version_without_java_is_null(hyp: Hyp, monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    from hypaware.engine import jvm
    from hypaware.errors import NotReady

    def none() -> jvm.Java:
        raise NotReady("there is none", kind="java_missing")

    monkeypatch.setattr(jvm, "find_java", none)

    assert json.loads(hyp("version", "--json")[1])["java"] is None
    assert "java      -\n" in hyp("version")[1]


def test_the_version_option_is_one_line(hyp: Hyp) -> None:
    code, out, _ = hyp("--version")

    assert code == 0
    assert out.startswith("hyp ")
    assert out.count("\n") == 1


def test_plugin_list_shows_the_built_in_datasets(hyp: Hyp) -> None:
    plugins = json.loads(hyp("plugin", "list", "--json")[1])["plugins"]

    assert {"group", "name", "distribution", "version", "value", "status", "error"} == set(plugins[0])
    assert "ai_gateway_messages" in hyp("plugin", "list")[1]


def test_crash_points_are_listed_by_name(hyp: Hyp) -> None:
    points = json.loads(hyp("dev", "crash-points", "--json")[1])["points"]

    names = [point["name"] for point in points]
    assert names == sorted(names)
    assert all(set(point) == {"name", "package", "about"} for point in points)
    assert all(point["package"] == point["name"].split(".")[0] for point in points)
    assert names[0] in hyp("dev", "crash-points")[1]


@pytest.mark.parametrize(
    "command",
    [("purge", "--session"), ("backfill", "--since"), ("daemon", "stop", "--timeout"), ("query", "sql", "--output")],
)
def test_an_option_without_its_value_names_the_help_of_its_command(hyp: Hyp, command: tuple[str, ...]) -> None:
    code, _, err = hyp(*command)

    assert code == 2
    assert f"Option '{command[-1]}' requires an argument." in err
    assert f"try: hyp {' '.join(command[:-1])} --help" in err


def test_hidden_commands_are_not_suggested(hyp: Hyp) -> None:
    code, _, err = hyp("xyz")

    assert code == 2
    assert "Known: setup, status," in err
    assert "hook" not in err


def test_get_prints_a_default_a_set_value_and_a_table(hyp: Hyp, home: Home) -> None:
    assert hyp("config", "get", "flush.interval") == (0, "2m\n", "")
    assert not home.root.exists()
    hyp("config", "set", "flush.interval", "5m")

    assert hyp("config", "get", "flush.interval") == (0, "5m\n", "")
    assert json.loads(hyp("config", "get", "flush.max_rows", "--json")[1]) == {"key": "flush.max_rows", "value": 100000}
    assert json.loads(hyp("config", "get", "flush")[1])["interval"] == "5m"


def test_get_of_an_unknown_key_names_the_nearest(hyp: Hyp) -> None:
    code, out, err = hyp("config", "get", "flush.intervall")

    assert (code, out) == (1, "")
    assert err == "error: unknown key flush.intervall. Did you mean interval?\n"
    assert "unknown key flush.interval.x" in hyp("config", "get", "flush.interval.x")[2]


def test_unset_restores_the_default_and_keeps_the_rest_of_the_file(hyp: Hyp, home: Home) -> None:
    home.root.mkdir()
    home.config.write_text('# mine\nversion = 1\n[flush]\ninterval = "5m" # often\nmax_rows = 7\n')

    changed = json.loads(hyp("config", "unset", "flush.interval", "--json")[1])

    assert changed == {"path": str(home.config), "key": "flush.interval", "before": "5m", "after": "2m"}
    assert home.config.read_text() == "# mine\nversion = 1\n[flush]\nmax_rows = 7\n"


def test_unset_removes_a_whole_sink(hyp: Hyp, home: Home) -> None:
    hyp("config", "set", "sinks.archive", '{ kind = "blob", destination = "s3://bucket/prefix" }')

    assert hyp("config", "unset", "sinks.archive")[0] == 0
    assert tomllib.loads(home.config.read_text()).get("sinks", {}) == {}


@pytest.mark.parametrize("key", ["flush.interval", "flush.nonsense", "sinks.none"])
def test_unset_of_a_key_that_is_not_set_changes_nothing(hyp: Hyp, home: Home, key: str) -> None:
    assert hyp("config", "unset", key)[0] == 1
    assert not home.root.exists()
    hyp("config", "set", "flush.max_rows", "7")
    before = home.config.read_bytes()

    code, _, err = hyp("config", "unset", key)

    assert code == 1
    assert f"{key} is not set in {home.config}" in err
    assert home.config.read_bytes() == before


def test_unset_refuses_what_would_make_the_file_invalid(hyp: Hyp, home: Home) -> None:
    hyp("config", "set", "sinks.archive", '{ kind = "blob", destination = "s3://bucket/prefix" }')
    before = home.config.read_bytes()

    code, _, err = hyp("config", "unset", "sinks.archive.kind")

    assert code == 1
    assert "sinks.archive" in err
    assert home.config.read_bytes() == before


def test_a_setting_that_gives_others_access_is_accepted_with_a_warning(hyp: Hyp) -> None:
    sink = '{{ kind = "forward", url = "{}" }}'
    for url in ("https://collector.example", "http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"):
        assert hyp("config", "set", "sinks.team", sink.format(url))[::2] == (0, "")

    code, _, err = hyp("config", "set", "sinks.team", sink.format("http://collector.example:18522"))
    assert code == 0
    assert "the sink team sends rows and its token unencrypted to collector.example" in err
    assert "hyp config set sinks.team.url https://collector.example:18522" in err
    assert "unencrypted" in hyp("config", "validate")[2]
    assert hyp("config", "set", "flush.interval", "5m")[2] == "", "only the changed setting is judged"

    assert hyp("config", "set", "gateway.allowed_hosts", '["192.0.2.7"]')[::2] == (0, "")
    code, _, err = hyp("config", "set", "gateway.listen", "0.0.0.0:18521")
    assert code == 0
    assert "other machines can call the gateway on 0.0.0.0:18521 as 192.0.2.7" in err

    code, _, err = hyp("config", "set", "engine.master", "spark://cluster.example:7077")
    assert code == 0
    assert "engine.secret_file" in err
    assert hyp("config", "set", "engine.secret_file", "/etc/spark-secret")[2] == ""


def test_validate_names_the_key_that_allows_listening_beyond_loopback(hyp: Hyp, home: Home) -> None:
    home.root.mkdir()
    home.config.write_text('version = 1\n[gateway]\nlisten = "0.0.0.0:18521"\n')

    code, _, err = hyp("config", "validate")

    assert code == 1
    assert "line 3: gateway.listen" in err
    assert "gateway.allowed_hosts" in err


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{ kind = "blob", destination = "/tmp/archive" }', '{ kind = "blob", destination = "file:///tmp/archive/" }'),
        (
            '{ kind = "forward", url = "https://team.example" }',
            '{ kind = "forward", url = "https://TEAM.example:443/" }',
        ),
    ],
)
def test_two_sinks_with_one_destination_are_refused(hyp: Hyp, home: Home, one: str, other: str) -> None:
    assert hyp("config", "set", "sinks.a", one)[0] == 0
    before = home.config.read_text()

    code, _, err = hyp("config", "set", "sinks.b", other)
    assert code != 0
    assert "the sinks a and b both deliver" in err
    assert home.config.read_text() == before

    options = "\n".join(part.strip() for part in other.strip("{ }").split(","))
    home.config.write_text(f"{before}\n[sinks.b]\n{options}\n")
    code, _, err = hyp("config", "validate")
    assert code != 0
    assert "each row would arrive twice" in err
