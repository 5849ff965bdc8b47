from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hypaware import plugins
from hypaware.backfill import providers as backfill_providers
from hypaware.backfill.providers import MaterializerRegistry, ProviderRegistry
from hypaware.clients.client import ImportItem, Materializer, Provenance, ProviderEvent, Source
from tests.support.plugin_distributions import install


@dataclass(frozen=True)
class Diary:
    name: Any = "diary"
    summary: Any = "what stands in ~/.diary"
    datasets: Any = ("ai_gateway_messages",)
    environment: Any = ("DIARY_HOME",)

    def find(self, environment: Any) -> Iterator[Source | ProviderEvent]:
        yield from ()

    def first_time(self, head: bytes) -> str | None:
        return None

    def read(self, reading: Any, environment: Any) -> Iterator[ImportItem | ProviderEvent]:
        yield from ()


def no_rows(_value: Any, _provenance: Provenance, _skipped: Counter[str]) -> Iterator[dict[str, Any]]:
    yield from ()


PAGES = Materializer("diary.page", "ai_gateway_messages", no_rows)

CLIENT = textwrap.dedent(
    """
    from hypaware.clients.client import Client

    class Provider:
        name = "{name}"
        summary = "what stands in ~/.diary"
        datasets = ("ai_gateway_messages",)
        environment = ()
        def find(self, environment): yield from ()
        def first_time(self, head): return None
        {read}

    CLIENT = Client("diary", "a diary", {backfill})
    """
)
READ = "def read(self, reading, environment): yield from ()"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install_client(site: Path, *, name: str = "diary", read: str = READ, backfill: str = "Provider()") -> None:
    code = CLIENT.format(name=name, read=read, backfill=backfill)
    install(site, "diary-for-hyp", "[hypaware.clients]\ndiary = diary_client:CLIENT\n", "diary_client", code)


def test_a_provider_is_known_by_its_name_and_its_plugin() -> None:
    providers = ProviderRegistry()
    providers.register(Diary(), "diary-for-hyp")

    found = providers.get("diary")

    assert found is not None
    assert (found.name, found.plugin, found.provider) == ("diary", "diary-for-hyp", Diary())
    assert [each.name for each in providers] == ["diary"]
    assert providers.get("nobody") is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"name": "Diary"}, "'Diary'"),
        ({"name": "../diary"}, "name"),
        ({"name": "list"}, "cannot be named list"),
        ({"name": "plan"}, "cannot be named plan"),
        ({"summary": ""}, "summary"),
        ({"summary": "two\nlines"}, "summary"),
        ({"datasets": ()}, "datasets is empty"),
        ({"datasets": "ai_gateway_messages"}, "datasets must be a tuple"),
        ({"datasets": ["ai_gateway_messages"]}, "datasets must be a tuple"),
        ({"datasets": ("a b",)}, "'a b'"),
        ({"datasets": ("a", "a")}, "duplicate name"),
        ({"environment": "DIARY_HOME"}, "environment must be a tuple"),
        ({"environment": ("DIARY=1",)}, "'DIARY=1'"),
    ],
)
def test_a_provider_of_the_wrong_shape_cannot_register(change: dict[str, Any], said: str) -> None:
    providers = ProviderRegistry()

    with pytest.raises(ValueError, match=r".+") as refused:
        providers.register(replace(Diary(), **change), "diary-for-hyp")

    assert said in str(refused.value)
    assert len(providers) == 0


@pytest.mark.parametrize("method", ["find", "first_time", "read"])
def test_a_provider_without_its_methods_cannot_register(method: str) -> None:
    broken = type("Broken", (Diary,), {method: None})()

    with pytest.raises(ValueError, match=f"no function {method}"):
        ProviderRegistry().register(broken, "diary-for-hyp")


def test_a_name_has_one_provider() -> None:
    providers = ProviderRegistry()
    providers.register(Diary(), "the-first")

    with pytest.raises(ValueError, match="the provider diary is already registered by the-first"):
        providers.register(Diary(summary="another"), "the-second")

    assert [each.plugin for each in providers] == ["the-first"]


def test_a_kind_has_one_materializer() -> None:
    materializers = MaterializerRegistry()
    materializers.register(PAGES, "the-first")

    with pytest.raises(ValueError, match=r"diary\.page is already registered by the-first"):
        materializers.register(replace(PAGES, dataset="pages"), "the-second")

    assert materializers.get("diary.page") is PAGES
    assert materializers.kinds() == ("diary.page",)
    assert materializers.get("diary.cover") is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "Diary Page"}, "'Diary Page'"),
        ({"name": "diary..page"}, "name"),
        ({"dataset": ""}, "dataset"),
        ({"materialize": None}, "materialize"),
        ({"tally": 7}, "tally"),
    ],
)
def test_a_materializer_of_the_wrong_shape_cannot_register(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        MaterializerRegistry().register(replace(PAGES, **change), "diary-for-hyp")


def test_an_installed_client_brings_its_provider(site: Path) -> None:
    install_client(site)

    found = backfill_providers.load_providers().get("diary")

    assert found is not None
    assert found.plugin == "diary-for-hyp"
    assert backfill_providers.load_providers().broken == []


def test_a_client_without_history_registers_no_provider(site: Path) -> None:
    install_client(site, backfill="None")

    providers = backfill_providers.load_providers()

    assert providers.get("diary") is None
    assert providers.broken == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"read": ""}, "no function read"),
        ({"name": "journal"}, "has the name 'journal'"),
        ({"backfill": "Nothing()"}, "NameError"),
        ({"backfill": "7"}, "name"),
    ],
)
def test_a_broken_client_is_listed_with_its_error_and_the_others_load(
    site: Path, change: dict[str, str], said: str
) -> None:
    without = [each.name for each in backfill_providers.load_providers()]
    install_client(site, **change)

    providers = backfill_providers.load_providers()

    (broken,) = providers.broken
    assert (broken.name, broken.distribution) == ("diary", "diary-for-hyp")
    assert said in str(broken.error)
    assert [each.name for each in providers] == without
    (listed,) = (each for each in plugins.list_plugins() if each.name == "diary")
    assert (listed.status, listed.error) == ("broken", broken.error)


def test_an_installed_materializer_is_found_by_its_kind(site: Path) -> None:
    code = """
from hypaware.clients.client import Materializer
def no_rows(value, provenance, skipped): return iter(())
PAGES = Materializer('diary.page', 'ai_gateway_messages', no_rows)
BAD = Materializer('diary.bad', '', no_rows)
"""
    entries = "[hypaware.materializers]\ndiary.page = diary_pages:PAGES\ndiary.bad = diary_pages:BAD\n"
    install(site, "diary-for-hyp", entries, "diary_pages", code)

    materializers = backfill_providers.load_materializers()

    found = materializers.get("diary.page")
    assert found is not None
    assert found.dataset == "ai_gateway_messages"
    assert materializers.get("diary.bad") is None
    assert [each.name for each in materializers.broken] == ["diary.bad"]
