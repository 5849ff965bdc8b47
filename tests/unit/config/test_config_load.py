from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hypaware import config
from hypaware.config import ClientConfig, Config, PrivacyConfig, RedactionConfig, SinkConfig, UpstreamConfig
from hypaware.config.schema import DATASET_DAYS
from hypaware.errors import ConfigError
from hypaware.home import Home
from hypaware.model import datasets

Write = Callable[[str], Home]

EVERYTHING = """
version = 1
[gateway]
listen = "127.0.0.1:9000"
[[gateway.upstreams]]
name = "anthropic"
path_prefix = "/"
base_url = "https://api.anthropic.com"
provider = "anthropic"
strip_prefix = false
[[gateway.upstreams]]
name = "local"
path_prefix = "/local"
base_url = "http://127.0.0.1:8080/"
strip_prefix = true
[clients.claude]
enabled = true
[clients.codex]
enabled = false
[engine]
master = "spark://host:7077"
memory = "2g"
idle_timeout = "1h"
[lake]
catalog = { type = "rest", uri = "https://catalog.example", "rest.page-size" = 50 }
warehouse = "s3://bucket/lake"
[flush]
interval = "30s"
cold_interval = "7d"
max_rows = 5
max_bytes = "64KB"
[retention]
default_days = 90
wait_for_sinks = false
max_hold_days = 0
[retention.datasets]
ai_gateway_messages = 365
[redaction]
kept = true
exported = false
rules_off = ["password", "bearer-token"]
[privacy]
unknown_folder = "local-only"
[privacy.folders]
"~/work" = "full"
"/srv/a b/api.token" = "ignore"
[sinks.team]
kind = "forward"
url = "https://host.example"
token_file = "~/token"
schedule = "0,30 8-18/2 * * 1-5"
datasets = ["ai_gateway_messages"]
[sinks.archive]
kind = "blob"
destination = "s3://bucket/prefix"
encoder = "parquet"
endpoint = "http://store.example:9000"
access_key_env = "STORE_KEY"
secret_key_env = "STORE_SECRET"
[sinks.lakehouse]
kind = "iceberg"
table = "team.ai_gateway_messages"
catalog = { type = "jdbc", uri = "jdbc:postgresql://db/catalog", user_env = "DB_USER" }
"""


def refusal(home: Home) -> str:
    with pytest.raises(ConfigError) as caught:
        config.load(home)
    assert caught.value.exit_code == 1
    return caught.value.message


def test_without_a_file_every_setting_has_its_documented_default(home: Home) -> None:
    found = config.load(home)

    assert found.gateway.listen == "127.0.0.1:18521"
    assert found.gateway.upstreams == ()
    assert found.clients == {}
    assert (found.engine.master, found.engine.memory, found.engine.idle_timeout) == ("local[*]", "1g", 900.0)
    assert (found.lake.catalog, found.lake.warehouse) == ("embedded", "")
    assert (found.flush.interval, found.flush.cold_interval) == (120.0, 900.0)
    assert (found.flush.max_rows, found.flush.max_bytes) == (100_000, 134_217_728)
    retention = found.retention
    assert (retention.default_days, retention.wait_for_sinks, retention.max_hold_days) == (0, True, 30)
    assert retention.datasets == {"ai_gateway_exchanges": 14, "otel_logs": 30, "otel_metrics": 30, "otel_spans": 30}
    assert found.otlp.listen == ""
    assert (found.redaction.kept, found.redaction.exported, found.redaction.rules_off) == (False, True, ())
    assert (found.privacy.unknown_folder, found.privacy.folders) == ("full", {})
    assert found.sinks == {}


def test_loading_creates_nothing(home: Home) -> None:
    config.load(home)

    assert not home.root.exists()


def test_an_empty_file_means_the_defaults(write: Write) -> None:
    assert config.load(write("")) == Config()


def test_every_documented_key_is_read_into_its_type(write: Write) -> None:
    found = config.load(write(EVERYTHING))

    assert found.gateway.listen == "127.0.0.1:9000"
    assert found.gateway.upstreams == (
        UpstreamConfig(name="anthropic", base_url="https://api.anthropic.com", provider="anthropic"),
        UpstreamConfig(
            name="local",
            base_url="http://127.0.0.1:8080",
            path_prefix="/local",
            provider="local",
            strip_prefix=True,
        ),
    )
    assert found.clients == {"claude": ClientConfig(True), "codex": ClientConfig(False)}
    assert (found.engine.master, found.engine.memory, found.engine.idle_timeout) == (
        "spark://host:7077",
        "2g",
        3600.0,
    )
    assert found.lake.catalog == {"type": "rest", "uri": "https://catalog.example", "rest.page-size": "50"}
    assert found.lake.warehouse == "s3://bucket/lake"
    assert (found.flush.interval, found.flush.cold_interval) == (30.0, 604800.0)
    assert (found.flush.max_rows, found.flush.max_bytes) == (5, 64_000)
    assert found.retention.datasets == {**DATASET_DAYS, "ai_gateway_messages": 365}
    assert not found.retention.wait_for_sinks
    assert found.redaction == RedactionConfig(kept=True, exported=False, rules_off=("password", "bearer-token"))
    assert found.privacy == PrivacyConfig("local-only", {"~/work": "full", "/srv/a b/api.token": "ignore"})
    assert found.sinks["team"] == SinkConfig(
        kind="forward",
        schedule="0,30 8-18/2 * * 1-5",
        datasets=("ai_gateway_messages",),
        options={"url": "https://host.example", "token_file": "~/token", "token_env": ""},
    )
    assert found.sinks["archive"].schedule == "*/5 * * * *"
    assert found.sinks["archive"].options == {
        "destination": "s3://bucket/prefix",
        "encoder": "parquet",
        "endpoint": "http://store.example:9000",
        "region": "",
        "access_key_env": "STORE_KEY",
        "secret_key_env": "STORE_SECRET",
    }
    assert found.sinks["lakehouse"].options["catalog"]["user_env"] == "DB_USER"


@pytest.mark.parametrize(
    ("text", "line", "key", "meant"),
    [
        ('version = 1\n\n[flush]\nintervall = "2m"\n', 4, "flush.intervall", "flush.interval"),
        ("[flsh]\nmax_rows = 1\n", 1, "flsh", "flush"),
        ("# a comment\ninterval = '2m'\n", 2, "interval", "flush.interval"),
        ("retention.wait_for_sink = true\n", 1, "retention.wait_for_sink", "retention.wait_for_sinks"),
        ("[clients.claude]\nenable = true\n", 2, "clients.claude.enable", "clients.claude.enabled"),
        (
            '[sinks.team]\nkind = "forward"\nurl = "https://h.example"\ntoken_fle = "x"\n',
            4,
            "sinks.team.token_fle",
            "sinks.team.token_file",
        ),
        (
            '[sinks.a]\nkind = "blob"\ndestination = "/data"\nencodr = "parquet"\n',
            4,
            "sinks.a.encodr",
            "sinks.a.encoder",
        ),
        (
            '[[gateway.upstreams]]\nname = "a"\nbase_url = "https://a.example"\nprovder = "a"\n',
            4,
            "gateway.upstreams[0].provder",
            "gateway.upstreams[0].provider",
        ),
    ],
)
def test_an_unknown_key_is_reported_with_its_line_and_the_most_similar_key(
    write: Write, text: str, line: int, key: str, meant: str
) -> None:
    message = refusal(write(text))

    assert f"line {line}: unknown key {key}." in message
    assert f"Did you mean {meant}?" in message


def test_an_unknown_key_without_a_similar_one_lists_the_known_keys(write: Write) -> None:
    assert "Known: clients.claude.enabled" in refusal(write("[clients.claude]\nqqqq = 1\n"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[flush]\ninterval = "fast"\n', 'line 2: flush.interval is "fast": expected a duration'),
        ("[flush]\ninterval = 120\n", "flush.interval is 120 (it has no unit)"),
        ('[flush]\ninterval = "0s"\n', "greater than zero"),
        ('[flush]\nmax_bytes = "many"\n', 'such as "128MiB"'),
        ("[flush]\nmax_bytes = true\n", "flush.max_bytes is true: expected a number of bytes"),
        ("[flush]\nmax_rows = 0\n", "flush.max_rows is 0: expected an integer of at least 1"),
        ("[flush]\nmax_rows = 1.5\n", "flush.max_rows is 1.5"),
        ("flush = 3\n", "flush is 3: expected a table: [flush]"),
        ("[retention]\ndefault_days = -1\n", "retention.default_days is -1"),
        ("[retention]\ndefault_days = true\n", "retention.default_days is true"),
        ('[retention]\nwait_for_sinks = "yes"\n', "expected true or false"),
        ('[retention.datasets]\nai_gateway_messages = "7d"\n', "expected an integer of at least 0"),
        ('[gateway]\nlisten = "18521"\n', 'such as "127.0.0.1:18521"'),
        ('[gateway]\nlisten = "127.0.0.1:99999"\n', "gateway.listen"),
        ("[gateway]\nupstreams = 1\n", "[[gateway.upstreams]]"),
        ('[[gateway.upstreams]]\nname = "a"\n', "has no base_url: expected base_url ="),
        ('[[gateway.upstreams]]\nname = "a"\nbase_url = "ftp://a"\n', "an http or https address"),
        ('[engine]\nmemory = "lots"\n', 'such as "1g"'),
        ('[engine]\nmaster = ""\n', "engine.master"),
        ('[lake]\ncatalog = "postgres"\n', 'expected "embedded", or a table'),
        ('[lake]\ncatalog = { type = "hadoop", uri = "x" }\n', "one of rest, jdbc, glue, hive"),
        ('[lake]\ncatalog = { type = "rest" }\n', "it has no uri"),
        ('[lake]\nwarehouse = "s3://bucket"\n', "needs a shared catalog"),
        ("[clients]\nclaude = true\n", "expected a table: [clients.claude]"),
        ("[clients.cladue]\n", "unknown client 'cladue'. Did you mean claude?"),
        ('[privacy]\nunknown_folder = "local"\n', "Did you mean local-only?"),
        ("[privacy]\nunknown_folder = 1\n", "expected one of full, local-only, ignore"),
        ('[privacy.folders]\n"/a" = "ingore"\n', 'line 2: privacy.folders."/a" is "ingore" (Did you mean ignore?)'),
        ('[privacy.folders]\n"work" = "ignore"\n', "privacy.folders.work: expected an absolute path"),
        ('[privacy.folders]\n"~nobody-of-that-name/a" = "ignore"\n', "expected an absolute path"),
        ('[redaction]\nrules_off = ["pasword"]\n', "unknown rule 'pasword'. Did you mean password?"),
        ('[redaction]\nrules_off = "password"\n', "expected a list of rule names"),
        ('[redaction]\nrules_off = ["password", "password"]\n', "repeated"),
        ("[redaction]\nkeep = true\n", "Did you mean redaction.kept?"),
        ('[sinks.a]\nurl = "https://a.example"\n', "sinks.a has no kind"),
        ('[sinks.a]\nkind = "forwrd"\n', "unknown kind of sink 'forwrd'. Did you mean forward?"),
        (
            '[sinks.a]\nkind = "blob"\ndestination = "backup"\n',
            'line 3: sinks.a.destination is "backup" (a relative path depends on the folder; write an absolute one)',
        ),
        (
            '[sinks.a]\nkind = "blob"\ndestination = "/a"\nencoder = "parquat"\n',
            "sinks.a.encoder: unknown encoder 'parquat'. Did you mean parquet?",
        ),
        ('[sinks.a]\nkind = "forward"\n', "sinks.a has no url"),
        ('[sinks.a]\nkind = "forward"\nurl = "https://a.example/v1/"\n', "write it without /v1"),
        ('[sinks."../x"]\nkind = "blob"\ndestination = "/d"\n', "a name made of letters, digits, _ and -"),
    ],
)
def test_an_invalid_value_is_reported_with_the_expected_type(write: Write, text: str, said: str) -> None:
    assert said in refusal(write(text))


def test_two_upstreams_may_not_share_a_prefix(write: Write) -> None:
    text = '[[gateway.upstreams]]\nname = "a"\nbase_url = "https://a.example"\n'

    assert "as a" in refusal(write(text + text.replace('"a"', '"b"')))


@pytest.mark.parametrize("version", ["2", "0", '"1"', "true", "1.0"])
def test_another_version_is_rejected_with_the_fix(write: Write, version: str) -> None:
    message = refusal(write(f"version = {version}\nunknown_in_version_1 = true\n"))

    assert f"line 1: version is {version}" in message
    assert "write version = 1, or use the version of HypAware that wrote this file" in message


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ('[flush]\ninterval = "2m\n', 2, 15),
        ("[flush]\ninterval 2m\n", 2, 10),
        ("[flush]\n[flush]\n", 2, 7),
        ("[flush]\ndatasets = [", 2, 13),
    ],
)
def test_invalid_toml_is_rejected_with_line_and_column(write: Write, text: str, line: int, column: int) -> None:
    assert f"line {line}, column {column}: " in refusal(write(text))


def test_a_file_that_is_not_utf8_is_rejected_with_its_line(write: Write) -> None:
    home = write("")
    home.config.write_bytes(b"version = 1\n# caf\xe9\n[flush]\n")

    assert "line 2: not UTF-8" in refusal(home)


def test_a_byte_order_mark_is_accepted(write: Write) -> None:
    assert config.load(write("\ufeffversion = 1\n")) == Config()


def test_an_unreadable_config_is_not_treated_as_missing(home: Home) -> None:
    home.config.mkdir(parents=True)

    assert "cannot read" in refusal(home)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[sinks.a]\nkind = "forward"\nurl = "https://a.example"\ntoken = "hunter2"\n', "sinks.a.token"),
        (
            '[sinks.a]\nkind = "blob"\ndestination = "/d"\nsecret_access_key = "hunter2"\n',
            "secret_access_key",
        ),
        (
            '[lake]\ncatalog = { type = "rest", uri = "https://c.example", credential = "hunter2" }\n',
            "credential",
        ),
        (
            '[lake]\ncatalog = { type = "glue", "s3.secret-access-key" = "hunter2" }\n',
            "s3.secret-access-key",
        ),
        ('[lake]\ncatalog = { type = "jdbc", uri = "jdbc:pg://me:hunter2@db/x" }\n', "lake.catalog.uri"),
        ('[lake]\ncatalog = { type = "jdbc", uri = "jdbc:x://db/x?password=hunter2" }\n', "lake.catalog.uri"),
        ('password = "hunter2"\n', "password"),
        ('[gateway]\napi_key = ["hunter2"]\n', "gateway.api_key"),
    ],
)
def test_a_secret_in_the_config_is_rejected_and_never_printed(write: Write, text: str, key: str) -> None:
    message = refusal(write(text))

    assert key in message
    assert "_file" in message
    assert "_env" in message
    assert "hunter2" not in message


@pytest.mark.parametrize("name", ["token", "my.password", "api_key", "a?token=b"])
def test_a_folder_can_have_any_name(write: Write, name: str) -> None:
    found = config.load(write(f'[privacy.folders]\n"/srv/{name}" = "ignore"\n'))

    assert found.privacy.folders == {f"/srv/{name}": "ignore"}


@pytest.mark.hazard(28)
@pytest.mark.parametrize(
    ("kind", "datasets", "said"),
    [
        ('kind = "blob"\ndestination = "/d"', '["ai_gateway_mesages"]', "Did you mean ai_gateway_messages?"),
        ('kind = "blob"\ndestination = "/d"', '["ai_gateway_exchanges"]', "which cannot be exported"),
        (
            'kind = "iceberg"\ntable = "t.m"\ncatalog = { type = "glue" }',
            '["ai_gateway_messages", "ai_gateway_exchanges"]',
            "which cannot be exported",
        ),
        ('kind = "forward"\nurl = "https://a.example"', "[]", "a list of dataset names"),
        ('kind = "forward"\nurl = "https://a.example"', '"ai_gateway_messages"', "a list of dataset names"),
        (
            'kind = "forward"\nurl = "https://a.example"',
            '["ai_gateway_messages", "ai_gateway_messages"]',
            "repeated",
        ),
    ],
)
def test_a_sink_with_a_dataset_that_cannot_be_exported_is_rejected(
    write: Write, kind: str, datasets: str, said: str
) -> None:
    message = refusal(write(f"[sinks.a]\n{kind}\ndatasets = {datasets}\n"))

    assert "sinks.a.datasets" in message
    assert said in message


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a distribution with a dataset `notes` and a sink kind `kafka`."""
    folder = tmp_path / "my_plugin-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[hypaware.datasets]\nnotes = my_plugin_notes:NOTES\n[hypaware.sinks]\nkafka = my_plugin_kafka:SINK\n"
    )
    (tmp_path / "my_plugin_notes.py").write_text(
        "from hypaware.model.columns import Column, ColumnType\n"
        "from hypaware.model.datasets import Dataset\n"
        "NOTES = Dataset(name='notes', about='', time_column='at', source_columns=(), key_column='id', columns=(\n"
        "    Column('at', ColumnType.TIMESTAMP, ''), Column('id', ColumnType.STRING, '')))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    datasets._load_registry.cache_clear()
    yield
    datasets._load_registry.cache_clear()


@pytest.mark.usefixtures("plugin")
def test_a_dataset_of_a_plugin_can_be_retained_and_exported(write: Write) -> None:
    found = config.load(
        write('[retention.datasets]\nnotes = 3\n[sinks.a]\nkind = "blob"\ndestination = "/d"\ndatasets = ["notes"]\n')
    )

    assert found.retention.datasets["notes"] == 3
    assert found.sinks["a"].datasets == ("notes",)


@pytest.mark.usefixtures("plugin")
def test_a_sink_kind_of_a_plugin_has_its_own_options(write: Write) -> None:
    sink = config.load(write('[sinks.a]\nkind = "kafka"\ntopic = "t"\nretries = 3\n')).sinks["a"]

    assert (sink.kind, sink.options) == ("kafka", {"topic": "t", "retries": 3})


@pytest.mark.hazard(28)
@pytest.mark.usefixtures("plugin")
def test_an_iceberg_sink_cannot_have_two_datasets(write: Write) -> None:
    text = '[sinks.a]\nkind = "iceberg"\ntable = "a.b"\ncatalog = { type = "glue" }\n'

    assert "a table can hold only one" in refusal(write(text + 'datasets = ["ai_gateway_messages", "notes"]\n'))


def test_retention_of_an_unknown_dataset_is_rejected(write: Write) -> None:
    assert "unknown dataset 'ai_gateway_mesages'" in refusal(write("[retention.datasets]\nai_gateway_mesages = 3\n"))


def test_loading_a_config_needs_neither_tomlkit_nor_entry_points(write: Write) -> None:
    """Every command loads the config, and these two would take longer than everything else."""
    home = write(EVERYTHING)
    script = (
        "import sys; from pathlib import Path; from hypaware import config; from hypaware.home import Home\n"
        f"config.load(Home(Path({str(home.root)!r})))\n"
        "print(sorted({'tomlkit', 'importlib.metadata', 'hypaware.model.datasets'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
