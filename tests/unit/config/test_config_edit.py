from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware import config
from hypaware.config import Config
from hypaware.config.edit import set_value, to_table, to_toml
from hypaware.errors import ConfigError
from hypaware.home import Home

Write = Callable[[str], Home]

COMMENTED = """\
# my machine
version = 1   # the only one

[retention]
default_days = 30 # a month
# the rest as it is

[flush]  # commits
max_rows = 500

  interval   =   "1m"   # often

[sinks.team]
kind = "forward"
url = "https://host.example"
"""


def test_setting_a_value_keeps_comments_order_and_spacing(write: Write) -> None:
    home = write(COMMENTED)

    change = set_value(home, "flush.interval", "5m")

    assert home.config.read_text() == COMMENTED.replace('"1m"', '"5m"')
    assert (change.key, change.before, change.after) == ("flush.interval", "1m", "5m")


def test_a_new_key_and_a_new_table_are_added_and_nothing_else_moves(write: Write) -> None:
    home = write(COMMENTED)

    set_value(home, "flush.max_bytes", "1MiB")
    set_value(home, "engine.memory", "2g")

    text = home.config.read_text()
    assert [line for line in text.splitlines() if line not in COMMENTED.splitlines()] == [
        'max_bytes = "1MiB"',
        "[engine]",
        'memory = "2g"',
    ]
    assert config.load(home).flush.max_bytes == 2**20


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("flush.interval", "soon", "expected a duration"),
        ("flush.max_rows", "-3", "expected an integer of at least 1"),
        ("flush.intervall", "5m", "Did you mean flush.interval?"),
        ("sinks.team.token", "hunter2", "token_file"),
        ("sinks.team.datasets", '["nothing"]', "unknown dataset 'nothing'"),
        ("version", "2", "reads version 1"),
        ("flush", "3", "expected a table"),
        ("flush.max_rows.deep", "3", "max_rows is not a table"),
        ("not a key", "3", "is not a valid key"),
        ("", "3", "is not a valid key"),
        ("a = 1\nb", "3", "is not a valid key"),
    ],
)
def test_an_invalid_change_is_rejected_and_leaves_the_file_unchanged(
    write: Write, key: str, value: str, said: str
) -> None:
    home = write(COMMENTED)

    with pytest.raises(ConfigError) as caught:
        set_value(home, key, value)

    assert said in caught.value.message
    assert "hunter2" not in caught.value.message
    assert home.config.read_text() == COMMENTED
    assert [path.name for path in home.root.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("retention.default_days", "7", 7),
        ("retention.wait_for_sinks", "false", False),
        ("flush.max_bytes", "4096", "4KiB"),
        ("engine.master", "local[2]", "local[2]"),
        ("engine.master", '"local[2]"', "local[2]"),
        ("lake.warehouse", "true", "true"),
        ("retention.datasets.ai_gateway_messages", "365", 365),
        ("clients.claude.enabled", "true", True),
        ("sinks.team.schedule", "*/5 * * * *", "*/5 * * * *"),
        ("lake.catalog", '{ type = "glue" }', {"type": "glue"}),
        ("redaction.rules_off", '["password"]', ["password"]),
        ("privacy.unknown_folder", "local-only", "local-only"),
        ('privacy.folders."~/a.b/token"', "ignore", "ignore"),
    ],
)
def test_text_is_converted_to_the_type_of_the_setting(write: Write, key: str, value: str, stored: object) -> None:
    home = write(COMMENTED)

    assert set_value(home, key, value).after == stored
    config.load(home)


def test_a_key_part_with_a_dot_can_be_quoted(write: Write) -> None:
    home = write('[lake]\ncatalog = { type = "rest", uri = "https://c.example" }\n')

    set_value(home, 'lake.catalog."s3.endpoint"', "http://127.0.0.1:9000")

    catalog = config.load(home).lake.catalog
    assert isinstance(catalog, dict)
    assert catalog["s3.endpoint"] == "http://127.0.0.1:9000"


def test_a_whole_sink_can_be_set_with_one_command(write: Write) -> None:
    home = write(COMMENTED)

    set_value(home, "sinks.archive", '{ kind = "blob", destination = "/data" }')

    assert set(config.load(home).sinks) == {"team", "archive"}


def test_setting_a_value_can_fix_an_invalid_file(write: Write) -> None:
    home = write('[flush]\ninterval = "soon"\n')

    change = set_value(home, "flush.interval", "5m")

    assert (change.before, change.after) == (None, "5m")


def test_an_error_elsewhere_in_the_file_is_reported_with_its_line(write: Write) -> None:
    home = write('[flush]\ninterval = "soon"\n')

    with pytest.raises(ConfigError, match=r"line 2: flush\.interval"):
        set_value(home, "flush.max_rows", "5")


def test_a_new_config_file_is_private_to_its_owner(home: Home) -> None:
    set_value(home, "flush.interval", "5m")

    assert home.config.read_text() == 'version = 1\n\n[flush]\ninterval = "5m"\n'
    assert home.config.stat().st_mode & 0o777 == 0o600
    assert home.root.stat().st_mode & 0o777 == 0o700


def test_a_config_that_is_a_link_stays_a_link(write: Write, tmp_path: Path) -> None:
    home = write("")
    dotfile = tmp_path / "dotfiles.toml"
    dotfile.write_text(COMMENTED)
    home.config.unlink()
    home.config.symlink_to(dotfile)

    set_value(home, "flush.interval", "5m")

    assert home.config.is_symlink()
    assert 'interval   =   "5m"   # often' in dotfile.read_text()


@pytest.mark.parametrize(
    "layout",
    [
        'flush.interval = "1m"\nflush.max_rows = 5\n',
        'flush = { interval = "1m", max_rows = 5 }\n',
        "flush.max_rows = 5\nretention.max_hold_days = 2\nclients.claude.enabled = true\n",
        "[flush]\nmax_rows = 5\n[retention.datasets]\n[engine]\n[retention]\n",
        "",
        "# only a comment",
    ],
)
def test_a_value_can_be_set_in_any_layout_of_the_file(write: Write, layout: str) -> None:
    home = write(layout)

    set_value(home, "flush.interval", "5m")
    set_value(home, "retention.default_days", "3")

    found = config.load(home)
    assert (found.flush.interval, found.retention.default_days) == (300.0, 3)
    assert found.flush.max_rows == (5 if "max_rows" in layout else 100_000)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        (
            'sinks.a.kind = "blob"\nsinks.a.destination = "/d"\nversion = 1\n',
            "sinks.a",
            '{ kind = "blob", destination = "/e" }',
        ),
        (
            'sinks.a.kind = "blob"\nsinks.a.destination = "/d"\nversion = 1\n',
            "sinks.b",
            '{ kind = "blob", destination = "/e" }',
        ),
        ("flush = { max_rows = 7 }\nversion = 1\n", "lake.catalog", '{ type = "glue" }'),
        (
            'sinks = { a = { kind = "blob", destination = "/d" } }\n',
            "sinks.b",
            '{ kind = "blob", destination = "/e" }',
        ),
        ("clients = { claude = { } }\nversion = 1\n", "clients.claude.enabled", "false"),
    ],
)
def test_setting_a_table_changes_no_other_key(write: Write, text: str, key: str, value: str) -> None:
    """A table that is inserted in the middle of a file would absorb the keys after it."""
    home = write(text)
    expected = to_table(config.load(home))
    *above, last = key.split(".")
    node = expected
    for part in above:
        node = node.setdefault(part, {})

    node[last] = set_value(home, key, value).after

    assert to_table(config.load(home)) == expected


def test_concurrent_changes_are_all_kept(write: Write) -> None:
    home = write("version = 1\n")
    script = (
        "import sys; from pathlib import Path\n"
        "from hypaware.config.edit import set_value; from hypaware.home import Home\n"
        "for n in range(10): set_value(Home(Path(sys.argv[1])), sys.argv[2], str(n + 1))"
    )
    keys = ["flush.max_rows", "retention.default_days", "retention.max_hold_days"]

    running = [subprocess.Popen([sys.executable, "-c", script, str(home.root), key]) for key in keys]

    assert [process.wait() for process in running] == [0, 0, 0]
    found = config.load(home)
    assert (found.flush.max_rows, found.retention.default_days, found.retention.max_hold_days) == (10, 10, 10)


def test_a_rendered_config_has_the_same_meaning(write: Write) -> None:
    home = write(COMMENTED)
    set_value(home, "sinks.lakehouse", '{ kind = "iceberg", table = "a.b", catalog = { type = "glue" } }')
    found = config.load(home)

    assert config.load(write(to_toml(found))) == found
    assert config.load(write(to_toml(Config()))) == Config()
