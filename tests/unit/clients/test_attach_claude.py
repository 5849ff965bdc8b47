"""Claude Code's settings.json: attach and detach keep all other bytes, even if the user edits the file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from hypaware.clients import attach, settings_file
from hypaware.clients.attach import AttachRecord
from hypaware.clients.claude.attach import ASSUME_FIRST_PARTY, EVENTS, VARIABLE, ClaudeSettings, hook_command
from hypaware.clients.settings_file import SettingsRefused
from hypaware.home import Home
from tests.support.strategies import json_values

GATEWAY = "http://127.0.0.1:18521"
OURS = f"{GATEWAY}/claude"
CLAUDE = ClaudeSettings()
NO_ENVIRONMENT = {"HOME": "/home/dev"}


def edited(text: str, environment: dict[str, str] | None = None) -> tuple[str, attach.SettingsEdit]:
    edit = CLAUDE.attach(text, GATEWAY, environment or NO_ENVIRONMENT)
    return settings_file.apply_splices(text, edit.splices), edit


def record_of(edit: attach.SettingsEdit, existed: bool = True) -> AttachRecord:
    return AttachRecord(
        "claude", "", existed, "", "", edit.splices, edit.base_url, edit.ours, edit.before, edit.upstreams
    )


hooks = st.lists(
    st.fixed_dictionaries(
        {"hooks": st.lists(st.fixed_dictionaries({"type": st.just("command"), "command": st.text()}), max_size=2)},
        optional={"matcher": st.text()},
    ),
    max_size=2,
)
settings = st.fixed_dictionaries(
    {},
    optional={
        "model": st.text(),
        "env": st.dictionaries(st.text(), st.text(), max_size=3),
        "hooks": st.fixed_dictionaries({}, optional={**dict.fromkeys(EVENTS, hooks), "Stop": hooks}),
        "permissions": json_values,
        "\u2028 odd": json_values,
    },
)
own_url = st.none() | st.sampled_from(["https://proxy.example/api", "http://10.0.0.1:8080"])
layouts = st.sampled_from([None, 2, 4, "\t", 0])


@st.composite
def files(draw: st.DrawFn) -> str:
    """Generate a settings.json as users, editors and programs write it."""
    value = draw(settings)
    if (url := draw(own_url)) is not None:
        value.setdefault("env", {})[VARIABLE] = url
    text = json.dumps(value, indent=draw(layouts), ensure_ascii=draw(st.booleans()))
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return draw(st.sampled_from(["", "\ufeff", " ", "\n"])) + text + draw(st.sampled_from(["", "\n", "\r\n", "  \n\n"]))


@examples(max_examples=60)
@given(files())
def test_attach_adds_only_our_settings_and_detach_restores_the_same_bytes(text: str) -> None:
    new, edit = edited(text)
    before, after = (json.loads(each.removeprefix("\ufeff")) for each in (text, new))
    assert after["env"][VARIABLE] == OURS == CLAUDE.base_url(new)
    assert settings_file.undo_splices(new, edit.splices) == text
    for event in EVENTS:
        assert after["hooks"][event][:-1] == before.get("hooks", {}).get(event, [])
        assert after["hooks"][event][-1]["hooks"][0]["command"].endswith("|| :")
        del after["hooks"][event]
        before.get("hooks", {}).pop(event, None)
    assert after["env"].pop(ASSUME_FIRST_PARTY, None) == (None if edit.upstreams else "1")
    for each in (before, after):
        each.get("env", {}).pop(VARIABLE, None)
        for name in ("env", "hooks"):
            if each.get(name) == {}:
                del each[name]
    assert after == before


@examples(max_examples=60)
@given(files())
def test_detach_changes_nothing_in_a_file_that_was_never_attached(text: str) -> None:
    """Empty containers stay too: attach starts from this text, and detach must restore the same bytes."""
    assert CLAUDE.detach(text, None) == text


@examples(max_examples=60)
@given(files())
def test_a_second_attach_changes_nothing(text: str) -> None:
    new, edit = edited(text)
    # The text alone does not say that the upstream is a proxy of the user; the attach record does.
    settings = json.loads(new.removeprefix("\ufeff"))
    settings["env"].setdefault(ASSUME_FIRST_PARTY, "1")
    assert edited(json.dumps(settings) if edit.upstreams else new)[1].splices == ()


@examples(max_examples=60)
@given(files(), st.text(), json_values, layouts)
def test_detach_keeps_edits_of_the_user_and_removes_all_our_settings(
    text: str, key: str, value: Any, indent: Any
) -> None:
    new, edit = edited(text)
    changed = json.loads(new.removeprefix("\ufeff"))
    original = json.loads(text.removeprefix("\ufeff"))
    if key not in ("env", "hooks"):
        changed[key] = original[key] = value
    changed["env"]["ANOTHER"] = "1"
    original.setdefault("env", {})["ANOTHER"] = "1"
    rewritten = json.dumps(changed, indent=indent)
    detached = CLAUDE.detach(rewritten, record_of(edit))
    assert json.loads(detached) == original
    assert "hook claude" not in detached or "hook claude" in text
    assert OURS not in detached
    assert ASSUME_FIRST_PARTY not in detached


@examples(max_examples=60)
@given(files())
def test_detach_keeps_a_value_that_the_user_changed(text: str) -> None:
    new, edit = edited(text)
    changed = json.loads(new.removeprefix("\ufeff"))
    changed["env"][VARIABLE] = "https://theirs.example"
    detached = json.loads(CLAUDE.detach(json.dumps(changed), record_of(edit)))
    assert detached["env"][VARIABLE] == "https://theirs.example"


def test_a_new_member_follows_the_formatting_of_the_file() -> None:
    new, _ = edited('{\n    "model": "opus",\n    "env": {\n        "A": "1"\n    }\n}\n')
    assert new.startswith(
        '{\n    "model": "opus",\n    "env": {\n        "A": "1",\n'
        f'        "{VARIABLE}": "{OURS}",\n        "{ASSUME_FIRST_PARTY}": "1"\n    }},\n'
        '    "hooks": {\n        "UserPromptSubmit": [\n            {\n'
    )
    assert json.loads(new)["hooks"]["PostToolUse"][0]["matcher"] == "Bash"
    one_line, _ = edited('{"env": {"A": "1"}}')
    assert "\n" not in one_line
    ours = f'"{VARIABLE}": "{OURS}", "{ASSUME_FIRST_PARTY}": "1"'
    assert one_line.startswith(f'{{"env": {{"A": "1", {ours}}}, "hooks": ')


def test_hooks_that_were_moved_to_another_group_are_removed() -> None:
    new, edit = edited("{}")
    value = json.loads(new)
    ours = value["hooks"]["PostToolUse"].pop()["hooks"][0]
    value["hooks"]["PostToolUse"].append({"matcher": "Edit", "hooks": [{"type": "command", "command": "fmt"}, ours]})
    detached = json.loads(CLAUDE.detach(json.dumps(value), record_of(edit)))
    assert detached == {
        "hooks": {"PostToolUse": [{"matcher": "Edit", "hooks": [{"type": "command", "command": "fmt"}]}]}
    }


@pytest.mark.hazard(63)
def test_a_proxy_of_the_user_becomes_the_upstream_and_is_restored() -> None:
    text = json.dumps({"env": {VARIABLE: "https://proxy.example/llm/"}})
    new, edit = edited(text)
    assert edit.upstreams == (attach.PreviousUpstream("/claude", "https://proxy.example/llm"),)
    assert json.loads(CLAUDE.detach(json.dumps(json.loads(new)), record_of(edit))) == json.loads(text)
    _, from_environment = edited("{}", {**NO_ENVIRONMENT, VARIABLE: "https://proxy.example"})
    assert from_environment.upstreams == (attach.PreviousUpstream("/claude", "https://proxy.example"),)
    _, ours = edited("{}", {**NO_ENVIRONMENT, VARIABLE: "http://localhost:18521/claude"})
    assert ours.upstreams == ()


@pytest.mark.hazard(111)
@pytest.mark.parametrize(
    ("settings", "environment", "expected"),
    [
        ({}, {}, "1"),
        ({"env": {VARIABLE: "https://api.anthropic.com"}}, {}, "1"),
        ({"env": {VARIABLE: "https://proxy.example"}}, {}, None),
        ({}, {VARIABLE: "https://proxy.example"}, None),
        ({"env": {ASSUME_FIRST_PARTY: "0"}}, {}, "0"),
        ({"env": {ASSUME_FIRST_PARTY: "1"}}, {}, "1"),
    ],
)
def test_the_client_sends_the_requests_of_its_own_provider_if_that_is_the_upstream(
    settings: dict[str, Any], environment: dict[str, str], expected: str | None
) -> None:
    """Behind an unknown base URL it declares all MCP tools. A value of the user stays, after detach too."""
    text = json.dumps(settings)
    new, edit = edited(text, {**NO_ENVIRONMENT, **environment})
    assert json.loads(new)["env"].get(ASSUME_FIRST_PARTY) == expected
    assert json.loads(CLAUDE.detach(json.dumps(json.loads(new)), record_of(edit))) == settings


@pytest.mark.hazard(111)
@pytest.mark.parametrize(
    ("settings", "environment", "name", "expected"),
    [
        ({}, {}, "NO_PROXY", None),
        ({}, {"HTTPS_PROXY": "http://p"}, "NO_PROXY", "127.0.0.1"),
        ({}, {"https_proxy": "http://p", "no_proxy": "a.example,.b"}, "no_proxy", "a.example,.b,127.0.0.1"),
        ({"env": {"HTTP_PROXY": "http://p", "NO_PROXY": "c"}}, {"NO_PROXY": "d"}, "NO_PROXY", "c,127.0.0.1"),
        ({}, {"HTTPS_PROXY": "http://p", "NO_PROXY": "a, 127.0.0.1"}, "NO_PROXY", None),
        ({}, {"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}, "NO_PROXY", None),
    ],
)
def test_a_configured_proxy_does_not_get_the_requests_to_the_gateway(
    settings: dict[str, Any], environment: dict[str, str], name: str, expected: str | None
) -> None:
    text = json.dumps(settings)
    new, edit = edited(text, {**NO_ENVIRONMENT, **environment})
    assert json.loads(new)["env"].get(name) == (expected or settings.get("env", {}).get(name))
    assert json.loads(CLAUDE.detach(json.dumps(json.loads(new)), record_of(edit))) == settings
    assert settings_file.undo_splices(new, edit.splices) == text


@pytest.mark.hazard(111)
def test_a_proxy_that_the_user_sets_later_is_not_taken_for_anthropic_after_detach() -> None:
    new, edit = edited("{}")
    theirs = json.loads(new)
    theirs["env"][VARIABLE] = "https://theirs.example"
    assert json.loads(CLAUDE.detach(json.dumps(theirs), record_of(edit))) == {
        "env": {VARIABLE: "https://theirs.example"}
    }


def test_without_a_record_detach_removes_what_can_only_be_ours() -> None:
    new, _ = edited('{\n  "model": "opus"\n}')
    assert CLAUDE.detach(new, None) == '{\n  "model": "opus"\n}'


@pytest.mark.parametrize(
    "text",
    [
        "{ // comment\n}",
        '{"a": 1,}',
        "[]",
        "nul",
        '{"env": []}',
        '{"env": {"ANTHROPIC_BASE_URL": 7}}',
        '{"hooks": []}',
        '{"hooks": {"SessionStart": {}}}',
        '{"env": {}, "env": {}}',
        '{"env": {"A": "1", "A": "2"}}',
        '{"a": NaN}',
        "{} {}",
        "[" * 100_000,
        '{"a": "\\ud800"} x',
    ],
)
def test_an_unknown_form_of_the_file_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(SettingsRefused, match="cannot edit"):
        edited(text)


def test_attach_warns_about_requests_that_bypass_the_gateway() -> None:
    assert "Bedrock" in edited('{"env": {"CLAUDE_CODE_USE_BEDROCK": "1"}}')[1].notes[0]
    assert "disableAllHooks" in edited('{"disableAllHooks": true}')[1].notes[0]


def test_the_hook_names_a_home_other_than_the_default(home: Home) -> None:
    new, _ = edited("{}", {**NO_ENVIRONMENT, "HYP_HOME": "/home/dev/a b"})
    command = json.loads(new)["hooks"]["UserPromptSubmit"][0]["hooks"][0]["command"]
    assert command.startswith("{ h='/home/dev/a b'; ")
    assert "/hyp hook claude" in command


@pytest.mark.hazard(111)
def test_the_next_attach_replaces_the_hooks_of_an_earlier_version() -> None:
    """They ran a program at the start of each session, for each prompt and each Bash call, and the client waited."""
    earlier = {"type": "command", "command": "HYP_HOME='/home/dev/a b' /opt/bin/hyp hook claude 2>/dev/null || :"}
    groups = {event: [{"hooks": [earlier]}] for event in ("SessionStart", *EVENTS)}
    theirs = {"hooks": [{"type": "command", "command": "their own"}]}
    text = json.dumps({"hooks": {**groups, "SessionStart": [theirs, *groups["SessionStart"]]}})
    new, _ = edited(CLAUDE.detach(text, None))
    hooks = json.loads(new)["hooks"]
    assert hooks.pop("SessionStart") == [theirs]
    assert {event: [hook["command"] for group in hooks[event] for hook in group["hooks"]] for event in hooks} == {
        event: [hook_command(NO_ENVIRONMENT)] for event in EVENTS
    }
