"""The entry of `hyp mcp` in the settings of Claude Code and Codex: written, written again, and taken out."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.clients.attach import AttachResult, ClientSettings, attach_client, detach_client, record_path
from hypaware.clients.codex.attach import CodexSettings
from hypaware.clients.mcp_entry import mcp_settings
from hypaware.clients.settings_file import SettingsRefused, apply_splices
from hypaware.home import Home

CLAUDE = [
    "",
    "{}",
    "{}\n",
    "{\n}\n",
    '{"numStartups":3}',
    '{\n  "numStartups": 3,\n  "projects": {"/x": {"mcpServers": {}}}\n}\n',
    '{\n  "mcpServers": {}\n}',
    '{\r\n\t"mcpServers": {\r\n\t\t"other": {\r\n\t\t\t"command": "x"\r\n\t\t}\r\n\t}\r\n}\r\n',
    '{"mcpServers": {"other": {"command": "x", "args": []}}, "a": [1, 2]}',
    '\ufeff{\n    "a": "€ \\u2028"\n}\n',
]
CODEX = [
    "",
    'model = "gpt-5"',
    'model = "gpt-5"\n# a comment\n\n[tui]\ntheme = "dark" # kept\n',
    '[mcp_servers.other]\ncommand = "x"\r\n\r\n[profiles.a]\r\nmodel = "b"\r\n',
    "[mcp_servers]\n",
    '\ufeffmodel = "gpt-5"\n',
]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def install(home: Home, client: str, environment: dict[str, str], **options: bool) -> AttachResult:
    return attach_client(home, mcp_settings(**options)[client], "", environment)


def uninstall(home: Home, client: str, environment: dict[str, str]) -> AttachResult:
    return detach_client(home, mcp_settings()[client], environment)


def settings_of(client: str, environment: dict[str, str]) -> Path:
    path = mcp_settings()[client].path(environment)
    path.parent.mkdir(exist_ok=True)
    return path


def servers(client: str, text: str) -> dict[str, Any]:
    text = text.removeprefix("\ufeff")
    found: dict[str, Any]
    found = json.loads(text)["mcpServers"] if client == "claude" else tomllib.loads(text)["mcp_servers"]
    return found


@pytest.mark.parametrize(
    ("client", "text"), [*(("claude", text) for text in CLAUDE), *(("codex", text) for text in CODEX)]
)
def test_the_entry_is_added_once_and_taken_out_without_a_trace(
    home: Home, environment: dict[str, str], client: str, text: str
) -> None:
    path = settings_of(client, environment)
    path.write_bytes(text.encode())

    first = install(home, client, environment)
    written = path.read_bytes().decode()
    again = install(home, client, environment)

    assert (first.changed, again.changed) == (True, False)
    assert path.read_bytes().decode() == written
    entry = servers(client, written)["hypaware"]
    assert (Path(entry["command"]).name, entry["args"]) == ("hyp", ["mcp"])
    assert uninstall(home, client, environment).changed
    assert path.read_bytes().decode() == text
    assert not record_path(home, f"{client}/mcp").exists()
    assert not uninstall(home, client, environment).changed


@pytest.mark.parametrize("client", ["claude", "codex"])
def test_a_file_that_did_not_exist_is_removed_again(home: Home, environment: dict[str, str], client: str) -> None:
    path = settings_of(client, environment)

    install(home, client, environment)
    assert "hypaware" in servers(client, path.read_text())
    uninstall(home, client, environment)

    assert not path.exists()


@pytest.mark.parametrize("client", ["claude", "codex"])
def test_changes_of_the_user_stay(home: Home, environment: dict[str, str], client: str) -> None:
    path = settings_of(client, environment)
    path.write_text({"claude": '{\n  "a": 1\n}\n', "codex": 'model = "a"\n'}[client])
    install(home, client, environment)
    before = path.read_text()
    changed = {
        "claude": before.replace('"a": 1', '"a": 2, "b": {"c": []}'),
        "codex": before.replace('model = "a"', 'model = "b" # better') + "\n[tui]\nx = 1\n",
    }[client]
    path.write_text(changed)

    assert not install(home, client, environment).changed
    uninstall(home, client, environment)

    left = path.read_text()
    assert "hypaware" not in left
    assert {"claude": '"a": 2, "b": {"c": []}', "codex": "# better"}[client] in left


@pytest.mark.parametrize("client", ["claude", "codex"])
def test_another_home_or_option_replaces_the_entry(home: Home, environment: dict[str, str], client: str) -> None:
    path = settings_of(client, environment)
    install(home, client, environment)

    changed = install(home, client, {**environment, "HYP_HOME": "/data/hyp"}, include_local_only=True)

    assert changed.changed
    (entry,) = servers(client, path.read_text()).values()
    assert entry["args"] == ["mcp", "--include-local-only"]
    assert entry["env"] == {"HYP_HOME": "/data/hyp"}
    uninstall(home, client, environment)
    assert not path.exists()


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("claude", '{"mcpServers": {"hypaware": {"command": "other"}}}'),
        ("claude", '{"mcpServers": {"hypaware": {"type": "http", "url": "https://x"}}}'),
        ("claude", '{"mcpServers": []}'),
        ("claude", '{"a": 1, // comment\n}'),
        ("claude", '{"mcpServers": {}, "mcpServers": {}}'),
        ("claude", "[]"),
        ("codex", '[mcp_servers.hypaware]\nurl = "https://x"\n'),
        ("codex", 'mcp_servers = { other = { command = "x" } }\n'),
        ("codex", "mcp_servers = 5\n"),
        ("codex", "not toml"),
    ],
)
def test_what_is_not_understood_is_refused_and_kept(
    home: Home, environment: dict[str, str], client: str, text: str
) -> None:
    path = settings_of(client, environment)
    path.write_text(text)

    with pytest.raises(SettingsRefused, match="Nothing was written") as refused:
        install(home, client, environment)

    assert str(path) in refused.value.message
    assert path.read_text() == text
    assert not record_path(home, f"{client}/mcp").exists()


def test_a_foreign_entry_of_our_name_is_not_taken_out(home: Home, environment: dict[str, str]) -> None:
    path = settings_of("claude", environment)
    path.write_text(text := '{"mcpServers": {"hypaware": {"command": "other"}}}')

    assert not uninstall(home, "claude", environment).changed
    assert path.read_text() == text


@pytest.mark.parametrize("first_out", ["mcp", "gateway"])
def test_it_can_share_a_file_with_the_gateway(home: Home, environment: dict[str, str], first_out: str) -> None:
    path = settings_of("codex", environment)
    path.write_text(text := 'model = "a"\n\n[tui]\nx = 1\n')
    gateway: ClientSettings = CodexSettings()
    attach_client(home, gateway, "http://127.0.0.1:18521", environment)
    install(home, "codex", environment)

    entry = mcp_settings()["codex"]
    for settings in (entry, gateway) if first_out == "mcp" else (gateway, entry):
        assert detach_client(home, settings, environment).changed

    assert path.read_text() == text


def test_a_dry_run_changes_nothing(home: Home, environment: dict[str, str]) -> None:
    path = settings_of("claude", environment)
    path.write_text("{}")

    done = attach_client(home, mcp_settings()["claude"], "", environment, dry_run=True)

    assert done.changed
    assert '+  "mcpServers"' in done.diff or '"hypaware"' in done.diff
    assert path.read_text() == "{}"
    assert not home.root.exists()


def test_the_file_of_claude_code_is_where_claude_code_looks(tmp_path: Path) -> None:
    claude = mcp_settings()["claude"]
    assert claude.path({"HOME": str(tmp_path)}) == tmp_path / ".claude.json"
    chosen = {"HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path / "c")}
    assert claude.path(chosen) == tmp_path / "c" / ".claude.json"
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / ".config.json").write_text("{}")
    assert claude.path({"HOME": str(tmp_path)}) == tmp_path / ".claude" / ".config.json"


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=4),
    st.one_of(st.none(), st.dictionaries(st.sampled_from(["x", "y"]), JSON_VALUES, max_size=2)),
    st.sampled_from([None, 2, "\t"]),
)
def test_any_settings_of_claude_code_keep_their_meaning_and_come_back(
    settings: dict[str, Any], present: dict[str, Any] | None, indent: int | str | None
) -> None:
    document = {**settings, **({} if present is None else {"mcpServers": present})}
    if not isinstance(document.get("mcpServers", {}), dict):
        return
    text = json.dumps(document, indent=indent)
    client = mcp_settings()["claude"]

    edit = client.attach(text, "", {"HOME": "/home/me"})
    changed = apply_splices(text, edit.splices)

    entry = json.loads(changed)["mcpServers"].pop("hypaware")
    assert entry["args"] == ["mcp"]
    left = json.loads(changed)
    del left["mcpServers"]["hypaware"]
    assert left == {**document, "mcpServers": document.get("mcpServers", {})}
    assert client.attach(changed, "", {"HOME": "/home/me"}).splices == ()
