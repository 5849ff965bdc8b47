"""Codex's config.toml: comments, order and line endings stay; invalid TOML is refused."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import tomlkit
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from hypaware.clients import attach, settings_file
from hypaware.clients.attach import AttachRecord
from hypaware.clients.codex.attach import CodexSettings
from hypaware.clients.settings_file import SettingsRefused, Splice
from hypaware.home import Home
from tests.support import processes

GATEWAY = "http://127.0.0.1:18521"
CODEX = CodexSettings()
NO_ENVIRONMENT = {"HOME": "/nonexistent"}

USUAL = """\
# mine
model = "gpt-5"   # the good one
approval_policy = "on-request"

[projects."/home/dev/project"]
trust_level = "trusted"
"""
THEIRS = """\
model_provider = "azure"

[model_providers.azure]   # work
name = "Azure"
base_url = "https://work.example/openai"
env_key = "AZURE_KEY"
query_params = { api-version = "2025-04-01-preview" }
"""
PARTS = [
    'model = "gpt-5"  # comment\n',
    "# only a comment\n",
    "\n",
    'notify = ["a", "b"]\n',
    "text = '''\n[not.a.table]\nmodel_provider = 1\n'''\n",
    'model_provider = "openai"   # default\n',
    "model_provider='openai'\n",
    'openai_base_url = "https://proxy.example/v1"  # ours\n',
]
TABLES = [
    "[tui]\nnotifications = true\n",
    "[[hooks]]\nrun = 1\n",
    '[model_providers.other]\nname = "o"\nbase_url = "https://o.example/v1"\n',
    '[profiles.fast]\nmodel = "x"  # y\n',
    "[ spaced . out ]\n  a = { b = 1 }\n",
]


def edited(text: str, environment: dict[str, str] | None = None) -> tuple[str, attach.SettingsEdit]:
    edit = CODEX.attach(text, GATEWAY, environment or NO_ENVIRONMENT)
    return settings_file.apply_splices(text, edit.splices), edit


def record_of(edit: attach.SettingsEdit) -> AttachRecord:
    return AttachRecord("codex", "", True, "", "", edit.splices, edit.base_url, edit.ours, edit.before, edit.upstreams)


def attached_by_an_earlier_version(text: str) -> tuple[str, AttachRecord]:
    mark, end = "# >>> hypaware: requests go through the gateway on this machine; `hyp client detach codex` takes", "\n"
    if "\r\n" in text:
        end = "\r\n"
    config = tomlkit.parse(text)
    lines = [f"{mark} this out", "[model_providers.hypaware]", 'name = "OpenAI through HypAware"']
    lines += [f'base_url = "{GATEWAY}/codex/v1"', "requires_openai_auth = true", 'wire_api = "responses"']
    lines += ["supports_websockets = false", "# <<< hypaware", ""]
    table = ("" if not text or text.endswith("\n") else end) + end.join(lines)
    top = end.join([f"{mark} this out", 'model_provider = "hypaware"', "# <<< hypaware", ""])
    if before := config.get("model_provider"):
        config["model_provider"], top = "hypaware", ""
    splices = (
        settings_file.diff_splice(text, top + tomlkit.dumps(config)),
        Splice(len(top + tomlkit.dumps(config)), "", table),
    )
    before = {"model_provider": before and str(before)}
    record = AttachRecord("codex", "", True, "", "", splices, "", {"base_urls": [f"{GATEWAY}/codex/v1"]}, before)
    return settings_file.apply_splices(text, splices), record


@st.composite
def files(draw: st.DrawFn) -> str:
    keys = draw(st.lists(st.sampled_from(PARTS), max_size=4, unique_by=lambda part: part.split("=")[0].strip()))
    tables = draw(st.lists(st.sampled_from(TABLES), max_size=4, unique=True))
    text = "".join((*keys, *tables))
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    if draw(st.booleans()):
        text = text.rstrip("\r\n")
    return draw(st.sampled_from(["", "\ufeff"])) + text


@examples(max_examples=40)
@given(files())
def test_attach_adds_only_our_settings_and_detach_restores_the_same_bytes(text: str) -> None:
    new, edit = edited(text)
    before, after = (tomllib.loads(each.removeprefix("\ufeff")) for each in (text, new))
    assert after.pop("openai_base_url") == f"{GATEWAY}/codex/v1" == CODEX.base_url(new)
    before.pop("openai_base_url", None)
    assert after == before
    assert settings_file.undo_splices(new, edit.splices) == text
    assert edited(new)[1].splices == ()
    assert ("\r\n" in text) == ("\r\n" in new) or "\n" not in text


@examples(max_examples=40)
@given(files(), st.sampled_from(['zzz = "new"\n', "# new\n"]), st.sampled_from(["[added]\nx = 1\n", "# end\n"]))
def test_detach_keeps_edits_of_the_user_and_removes_all_our_settings(text: str, top: str, bottom: str) -> None:
    plain = text.removeprefix("\ufeff")
    new, edit = edited(plain)
    end = "\r\n" if "\r\n" in new else "\n"
    top, bottom = top.replace("\n", end), ("" if plain.endswith("\n") else end) + bottom.replace("\n", end)
    detached = CODEX.detach(top + new + bottom, record_of(edit))
    assert tomllib.loads(detached) == tomllib.loads(top + plain + bottom)
    assert "hypaware" not in detached
    for line in (*plain.splitlines(), top.strip(), *bottom.split(end)):
        assert line in detached


@examples(max_examples=40)
@given(files())
def test_settings_in_a_rewritten_file_are_removed_key_by_key(text: str) -> None:
    new, edit = edited(text.removeprefix("\ufeff"))
    rewritten = tomlkit.dumps(tomllib.loads(new))
    detached = CODEX.detach(rewritten, record_of(edit))
    assert tomllib.loads(detached) == tomllib.loads(text.removeprefix("\ufeff"))


@pytest.mark.hazard(111)
def test_attach_writes_one_key_at_the_top_and_keeps_the_provider() -> None:
    new, edit = edited(USUAL)
    assert new == (
        "# >>> hypaware: requests go through the gateway on this machine; `hyp client detach codex` takes this out\n"
        'openai_base_url = "http://127.0.0.1:18521/codex/v1"\n'
        "# <<< hypaware\n" + USUAL
    )
    assert CODEX.detach(new + "\n[mine]\nx = 1\n", record_of(edit)) == USUAL + "\n[mine]\nx = 1\n"


@pytest.mark.hazard(111)
@examples(max_examples=40)
@given(files(), st.booleans())
def test_a_provider_of_an_earlier_version_is_replaced_by_attach_and_removed_by_detach(text: str, known: bool) -> None:
    plain = text.removeprefix("\ufeff")
    old, record = attached_by_an_earlier_version(plain)
    new, edit = edited(old)
    before, after = tomllib.loads(plain), tomllib.loads(new)
    assert after.pop("openai_base_url") == CODEX.base_url(new)
    before.pop("openai_base_url", None)
    assert {"model_provider": "openai", **after} == {"model_provider": "openai", **before}
    assert edited(new)[1].splices == ()
    assert settings_file.undo_splices(new, edit.splices) == old
    detached = tomllib.loads(CODEX.detach(f"# mine\n{old}", record if known else None))
    assert {"model_provider": "openai", **detached} == {"model_provider": "openai", **tomllib.loads(plain)}
    if known:
        assert detached == tomllib.loads(plain)


KILLED = """
import sys
from hypaware.clients import attach
from hypaware.clients.codex.attach import CodexSettings
from hypaware.home import Home

attach.attach_client(Home.from_environment(), CodexSettings(), sys.argv[2], {"HOME": sys.argv[1]})
"""


@pytest.mark.hazard(111)
@pytest.mark.parametrize(
    "point", ["clients.attach.after-record", "clients.settings.before-rename", "clients.attach.after-write"]
)
def test_detach_restores_the_file_after_a_killed_replacement_of_the_provider(
    home: Home, tmp_path: Path, point: str
) -> None:
    text = f'model_provider = "openai"\n{USUAL}'
    old, record = attached_by_an_earlier_version(text)
    path = CODEX.path({"HOME": str(tmp_path)})
    path.parent.mkdir()
    path.write_text(old)
    original, written = settings_file.hash_text(text), settings_file.hash_text(old)
    attach.write_record(home, replace(record, path=str(path), original_sha256=original, written_sha256=written))
    assert processes.was_killed(processes.run(KILLED, home, str(tmp_path), GATEWAY, crash_at=point))
    attach.detach_client(home, CODEX, {"HOME": str(tmp_path)})
    assert path.read_text() == text


@pytest.mark.hazard(111)
def test_the_sessions_of_the_removed_provider_are_named(tmp_path: Path) -> None:
    """Codex refuses to resume a session under another provider than the one under which it began."""
    folder = tmp_path / "sessions/2026/11/16"
    folder.mkdir(parents=True)
    for number, provider in enumerate(["openai", *["hypaware"] * 6, "openai"]):
        meta = {"type": "session_meta", "payload": {"id": f"session-{number}", "model_provider": provider}}
        (folder / f"rollout-2026-11-16T10-00-0{number}-x.jsonl").write_text(json.dumps(meta) + "\n{}\n")
    (folder / "rollout-2026-11-16T10-00-09-x.jsonl").write_text("no json\n")
    environment = {"CODEX_HOME": str(tmp_path)}
    old, _ = attached_by_an_earlier_version(USUAL)
    (note,) = CODEX.explain_removal(old, environment)
    assert "codex fork ID" in note
    assert note.endswith("session-6, session-5, session-4, session-3, session-2 and 1 more")
    assert CODEX.explain_removal(edited(USUAL)[0], environment) == ()
    assert CODEX.explain_removal(old, {"CODEX_HOME": str(tmp_path / "none")}) == ()


@pytest.mark.hazard(63)
def test_a_provider_of_the_user_is_kept_and_routed_through_the_gateway() -> None:
    new, edit = edited(THEIRS)
    assert new == THEIRS.replace("https://work.example/openai", f"{GATEWAY}/codex/v1")
    assert edit.upstreams == (attach.PreviousUpstream("/codex/v1", "https://work.example/openai"),)
    assert settings_file.undo_splices(new, edit.splices) == THEIRS
    assert CODEX.detach(f"# mine\n{new}", record_of(edit)) == f"# mine\n{THEIRS}"
    moved = new.replace(f"{GATEWAY}/codex/v1", "https://elsewhere.example")
    assert CODEX.detach(moved, record_of(edit)) == moved


@pytest.mark.hazard(63)
def test_another_openai_base_url_becomes_the_upstream() -> None:
    text = 'openai_base_url = "https://proxy.example/v1/"  # mine\n'
    new, edit = edited(text)
    assert new == f'openai_base_url = "{GATEWAY}/codex/v1"  # mine\n'
    assert edit.upstreams == (attach.PreviousUpstream("/codex/v1", "https://proxy.example/v1"),)
    assert CODEX.detach(f"# more\n{new}", record_of(edit)) == f"# more\n{text}"
    moved = new.replace(f"{GATEWAY}/codex/v1", "https://elsewhere.example")
    assert CODEX.detach(moved, record_of(edit)) == moved
    _, edit = edited("", {**NO_ENVIRONMENT, "OPENAI_BASE_URL": "https://proxy.example/v1/"})
    assert edit.upstreams == (), "Codex ignores this variable"


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        ('{"OPENAI_API_KEY": "x"}', "/codex/v1"),
        ('{"OPENAI_API_KEY": null, "tokens": {"id_token": "x"}}', "/codex/chatgpt/codex"),
        ('{"auth_mode": "chatgpt", "OPENAI_API_KEY": "x", "tokens": {}}', "/codex/chatgpt/codex"),
        ('{"auth_mode": "apikey", "tokens": {}}', "/codex/v1"),
        ("no json", "/codex/v1"),
        ("[]", "/codex/v1"),
    ],
)
def test_a_chatgpt_login_uses_its_own_path(tmp_path: Path, auth: str, expected: str) -> None:
    (tmp_path / "auth.json").write_text(auth)
    _, edit = edited("", {"CODEX_HOME": str(tmp_path)})
    assert edit.base_url == GATEWAY + expected


@pytest.mark.parametrize(
    "text",
    [
        "model = ",
        "model_provider = 1\n",
        "model_providers = 1\n",
        'model_provider = "ollama"\n',
        "openai_base_url = 1\n",
    ],
)
def test_an_unknown_form_of_the_file_is_refused(text: str) -> None:
    with pytest.raises(SettingsRefused, match="Nothing was written"):
        edited(text)


def test_without_a_record_detach_removes_what_can_only_be_ours() -> None:
    new, _ = edited(USUAL)
    assert CODEX.detach(new, None) == USUAL


def test_detach_keeps_settings_that_the_user_added_to_our_table() -> None:
    old, record = attached_by_an_earlier_version(USUAL)
    changed = old.replace("wire_api", 'http_headers = { a = "b" }\nwire_api')
    detached = tomllib.loads(CODEX.detach(changed, record))
    assert detached["model_providers"] == {"hypaware": {"http_headers": {"a": "b"}}}
    assert "model_provider" not in detached


def test_a_provider_of_the_user_with_our_name_stays() -> None:
    theirs = 'model_provider = "hypaware"\n[model_providers.hypaware]\nbase_url = "https://x.example/v1"\nname = "x"\n'
    assert CODEX.detach(theirs, None) == theirs
    new, edit = edited(theirs)
    assert edit.upstreams == (attach.PreviousUpstream("/codex/v1", "https://x.example/v1"),)
    assert CODEX.detach(f"# mine\n{new}", record_of(edit)) == f"# mine\n{theirs}"


@pytest.mark.hazard(111)
def test_attach_is_refused_while_a_proxy_would_get_the_requests() -> None:
    assert edited("", {**NO_ENVIRONMENT, "HTTPS_PROXY": "http://p"})[1].splices
    proxy = {**NO_ENVIRONMENT, "http_proxy": "http://p", "no_proxy": "a"}
    with pytest.raises(SettingsRefused, match=r"Set no_proxy=a,127\.0\.0\.1 and attach again"):
        edited("", proxy)
    assert edited("", {**proxy, "no_proxy": "a,127.0.0.1"})[1].splices


def test_attach_warns_about_a_profile_with_another_provider() -> None:
    assert "'work'" in edited('[profiles.work]\nmodel_provider = "x"\n')[1].notes[0]
