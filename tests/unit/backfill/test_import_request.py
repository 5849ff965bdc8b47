from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hypaware import telemetry
from hypaware.backfill.providers import ProviderRegistry
from hypaware.backfill.request import ImportRequest, parse_request, select_providers
from hypaware.clients.qwen.history import QwenHistory
from hypaware.config import ClientConfig, Config, RetentionConfig
from hypaware.errors import HypError, UsageError
from hypaware.home import Home
from hypaware.plugins import Plugin

NOW = datetime(2026, 11, 15, tzinfo=UTC)
HOME = Home(Path("/home/dev/.hyp"))


@dataclass(frozen=True)
class Diary:
    name: str
    environment: tuple[str, ...] = ()
    summary: str = "what stands in ~/.diary"
    datasets: tuple[str, ...] = ("ai_gateway_messages",)

    def find(self, environment: Any) -> Iterator[Any]:
        yield from ()

    def first_time(self, head: bytes) -> str | None:
        return None

    def read(self, reading: Any, environment: Any) -> Iterator[Any]:
        yield from ()


def registered(*providers: Diary) -> ProviderRegistry:
    found = ProviderRegistry()
    for each in providers:
        found.register(each, "diary-for-hyp")
    return found


def parse(providers: ProviderRegistry, config: Config | None = None, **options: Any) -> ImportRequest:
    arguments = {"now": NOW, "variables": {"HOME": "/home/dev"}, **options}
    return parse_request(HOME, config or Config(), providers, **arguments)


def names(request: ImportRequest) -> list[str]:
    return [each.name for each in request.selection.chosen]


BOTH = (Diary("diary"), Diary("logbook"))


def test_without_names_every_enabled_client_is_chosen() -> None:
    config = Config(clients={"logbook": ClientConfig(enabled=False)})

    assert names(parse(registered(*BOTH))) == ["diary", "logbook"]
    assert names(parse(registered(*BOTH), config)) == ["diary"]


def test_names_override_the_config_and_count_once() -> None:
    config = Config(clients={"logbook": ClientConfig(enabled=False)})

    assert names(parse(registered(*BOTH), config, names=["logbook", "diary", "logbook"])) == ["logbook", "diary"]


@pytest.mark.hazard(48)
def test_an_unknown_name_is_an_error_that_suggests_the_closest() -> None:
    with pytest.raises(HypError, match=r"unknown provider 'dairy'\. Did you mean diary\?") as refused:
        parse(registered(*BOTH), names=["logbook", "dairy"])

    assert (refused.value.kind, refused.value.exit_code) == ("unknown_provider", 1)


@pytest.mark.hazard(48)
def test_a_name_is_an_error_if_no_provider_is_registered() -> None:
    with pytest.raises(HypError, match="No provider is registered"):
        parse(registered(), names=["diary"])


def test_the_name_of_a_broken_client_is_an_error_with_its_reason() -> None:
    providers = registered(*BOTH)
    providers.broken.append(Plugin("hypaware.clients", "notes", "notes-for-hyp", "1", "n:C", "broken", "no luck"))

    with pytest.raises(HypError, match="cannot load the client notes from notes-for-hyp: no luck") as refused:
        parse(providers, names=["notes"])

    assert refused.value.kind == "provider_broken"


@pytest.mark.parametrize("command", ["list", "plan"])
def test_a_subcommand_in_place_of_a_provider_name_is_a_usage_error(command: str) -> None:
    with pytest.raises(UsageError, match=f"{command} is a subcommand"):
        parse(registered(*BOTH), names=[command])


def test_no_provider_registered_and_none_enabled_have_different_messages() -> None:
    disabled = Config(clients={each.name: ClientConfig(enabled=False) for each in BOTH})

    assert parse(registered(*BOTH)).selection.why_none is None
    assert "no provider is registered" in str(parse(registered()).selection.why_none)
    reason = str(parse(registered(*BOTH), disabled).selection.why_none)
    assert "enabled" in reason
    assert "diary, logbook" in reason
    assert "registered: no" not in reason


def test_providers_see_only_the_variables_that_they_request() -> None:
    variables = {"HOME": "/home/dev", "DIARY_HOME": "/diary", "LOGBOOK_HOME": "/logbook", "SECRET": "s"}
    providers = registered(Diary("diary", ("DIARY_HOME", "DIARY_MOOD")), Diary("logbook", ("LOGBOOK_HOME",)))

    found = parse(providers, names=["diary"], variables=variables)

    assert found.environment == {"HOME": "/home/dev", "HYP_HOME": "/home/dev/.hyp", "DIARY_HOME": "/diary"}


def test_job_arguments_are_plain_json() -> None:
    config = Config(retention=RetentionConfig(default_days=30))

    assert parse(registered(*BOTH), config, names=["diary"], until="1d").args == {
        "providers": ["diary"],
        "since": "2026-10-16T00:00:00.000000Z",
        "until": "2026-11-14T00:00:00.000000Z",
        "retention_days": 30,
        "environment": {"HOME": "/home/dev", "HYP_HOME": "/home/dev/.hyp"},
        "run_id": telemetry.dev_run_id(),
    }
    assert parse(registered(*BOTH), config, retention_days=0).args["retention_days"] == 0


@pytest.mark.hazard(49)
def test_an_invalid_date_is_reported_before_an_unknown_name() -> None:
    with pytest.raises(UsageError, match="--since"):
        parse(registered(), names=["nobody"], since="soon")


def test_an_optional_provider_takes_part_if_it_has_history_or_is_named(tmp_path: Path) -> None:
    registry = ProviderRegistry()
    registry.register(QwenHistory(), "test")
    variables = {"HOME": str(tmp_path)}

    assert select_providers(registry, Config(), variables=variables).chosen == ()
    named = Config(clients={"qwen": ClientConfig()})
    assert [each.name for each in select_providers(registry, named, variables=variables).chosen] == ["qwen"]
    assert [each.name for each in select_providers(registry, Config(), ["qwen"], variables).chosen] == ["qwen"]
    (tmp_path / ".qwen" / "projects" / "-shop" / "chats").mkdir(parents=True)
    (tmp_path / ".qwen" / "projects" / "-shop" / "chats" / "a.jsonl").touch()
    assert [each.name for each in select_providers(registry, Config(), variables=variables).chosen] == ["qwen"]
