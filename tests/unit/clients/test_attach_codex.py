"""Codex's config.toml: comments, order and line endings stay; invalid TOML is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import tomlkit
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from hypaware.clients import attach, settings_file
from hypaware.clients.attach import AttachRecord
from hypaware.clients.codex.attach import CodexSettings
from hypaware.clients.settings_file import SettingsRefused

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
    return AttachRecord("codex", "", True, "", "", edit.splices, edit.base_url, edit.ours, edit.before, edit.upstream)


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
    assert after.pop("model_provider") == "hypaware"
    ours = after["model_providers"].pop("hypaware")
    assert ours["base_url"] == f"{GATEWAY}/codex/v1" == CODEX.base_url(new)
    assert (ours["requires_openai_auth"], ours["wire_api"], ours["supports_websockets"]) == (True, "responses", False)
    before.pop("model_provider", None)
    before.setdefault("model_providers", {})
    assert after == before
    assert settings_file.undo_splices(new, edit.splices) == text
    assert edited(new)[1].splices == ()
    assert ("\r\n" in text) == ("\r\n" in new) or "\n" not in text


@examples(max_examples=40)
@given(files(), st.sampled_from(['zzz = "new"\n', "# new\n"]), st.sampled_from(["[added]\nx = 1\n", "# end\n"]))
def test_detach_keeps_edits_of_the_user_and_removes_all_our_settings(text: str, top: str, bottom: str) -> None:
    new, edit = edited(text.removeprefix("\ufeff"))
    end = "\r\n" if "\r\n" in new else "\n"
    changed = top.replace("\n", end) + new + bottom.replace("\n", end)
    detached = CODEX.detach(changed, record_of(edit))
    plain = text.removeprefix("\ufeff")
    assert tomllib.loads(detached) == tomllib.loads(top + plain + ("" if plain.endswith("\n") else "\n") + bottom)
    assert "hypaware" not in detached
    for line in (*text.removeprefix("\ufeff").splitlines(), top.strip(), bottom.splitlines()[0]):
        assert line.partition("'openai'")[0].partition('"openai"')[0] in detached


@examples(max_examples=40)
@given(files())
def test_settings_in_a_rewritten_file_are_removed_key_by_key(text: str) -> None:
    new, edit = edited(text.removeprefix("\ufeff"))
    rewritten = tomlkit.dumps(tomllib.loads(new))
    detached = CODEX.detach(rewritten, record_of(edit))
    assert tomllib.loads(detached) == tomllib.loads(text.removeprefix("\ufeff"))


def test_attach_writes_a_block_at_the_top_and_a_table_at_the_end() -> None:
    new, edit = edited(USUAL)
    assert new == (
        "# >>> hypaware: requests go through the gateway on this machine; `hyp client detach codex` takes this out\n"
        'model_provider = "hypaware"\n'
        "# <<< hypaware\n" + USUAL + "# >>> hypaware: requests go through the gateway on this machine; "
        "`hyp client detach codex` takes this out\n"
        "[model_providers.hypaware]\n"
        'name = "OpenAI through HypAware"\n'
        'base_url = "http://127.0.0.1:18521/codex/v1"\n'
        "requires_openai_auth = true\n"
        'wire_api = "responses"\n'
        "supports_websockets = false\n"
        "# <<< hypaware\n"
    )
    assert CODEX.detach(new + "\n[mine]\nx = 1\n", record_of(edit)) == USUAL + "\n[mine]\nx = 1\n"


@pytest.mark.hazard(63)
def test_a_provider_of_the_user_is_kept_and_routed_through_the_gateway() -> None:
    new, edit = edited(THEIRS)
    assert new == THEIRS.replace("https://work.example/openai", f"{GATEWAY}/codex/v1")
    assert edit.upstream == attach.PreviousUpstream("/codex/v1", "https://work.example/openai")
    assert settings_file.undo_splices(new, edit.splices) == THEIRS
    assert CODEX.detach(f"# mine\n{new}", record_of(edit)) == f"# mine\n{THEIRS}"
    moved = new.replace(f"{GATEWAY}/codex/v1", "https://elsewhere.example")
    assert CODEX.detach(moved, record_of(edit)) == moved


@pytest.mark.hazard(63)
def test_another_openai_base_url_becomes_the_upstream() -> None:
    _, edit = edited('openai_base_url = "https://proxy.example/v1"\n')
    assert edit.upstream == attach.PreviousUpstream("/codex/v1", "https://proxy.example/v1")
    _, edit = edited("", {**NO_ENVIRONMENT, "OPENAI_BASE_URL": "https://proxy.example/v1/"})
    assert edit.upstream == attach.PreviousUpstream("/codex/v1", "https://proxy.example/v1")


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        ('{"OPENAI_API_KEY": "x"}', "/codex/v1"),
        ('{"OPENAI_API_KEY": null, "tokens": {"id_token": "x"}}', "/codex/backend-api/codex"),
        ('{"auth_mode": "chatgpt", "OPENAI_API_KEY": "x", "tokens": {}}', "/codex/backend-api/codex"),
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
        'model_providers = { x = { name = "x" } }\n',
        "model_provider = 1\n",
        "model_providers = 1\n",
        'model_provider = "ollama"\n',
        '[model_providers.hypaware]\nname = "somebody\'s"\n',
    ],
)
def test_an_unknown_form_of_the_file_is_refused(text: str) -> None:
    with pytest.raises(SettingsRefused, match="Nothing was written"):
        edited(text)


def test_without_a_record_detach_removes_what_can_only_be_ours() -> None:
    new, _ = edited(USUAL)
    assert CODEX.detach(new, None) == USUAL


def test_detach_keeps_settings_that_the_user_added_to_our_table() -> None:
    new, edit = edited(USUAL)
    changed = new.replace("wire_api", 'http_headers = { a = "b" }\nwire_api')
    detached = tomllib.loads(CODEX.detach(changed, record_of(edit)))
    assert detached["model_providers"] == {"hypaware": {"http_headers": {"a": "b"}}}
    assert "model_provider" not in detached


def test_attach_warns_about_a_profile_with_another_provider() -> None:
    assert "'work'" in edited('[profiles.work]\nmodel_provider = "x"\n')[1].notes[0]
