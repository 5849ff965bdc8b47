from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypaware.backfill.check import ProviderFault, checked, checked_source, rows_of
from hypaware.backfill.materializer import InvalidItem, Materializer
from hypaware.backfill.provider import Event, Found, Item, Provenance
from hypaware.backfill.registry import Materializers
from hypaware.plugins import Plugin

DATASET = "ai_gateway_messages"
FROM = Provenance("diary", "/home/dev/.diary/monday", "monday")
ITEM = Item(DATASET, "diary.page", {"text": "rain"}, FROM)
AS_MAPPING = {
    "dataset": DATASET,
    "kind": "diary.page",
    "value": {"text": "rain"},
    "provenance": {"client_name": "diary", "source_path": "/home/dev/.diary/monday", "native_id": "monday"},
}


class Diary:
    name = "diary"
    summary = "what stands in ~/.diary"
    datasets: tuple[str, ...] = (DATASET, "diary_pages")
    environment = ()

    def find(self, environment: Any) -> Iterator[Any]:
        yield from ()

    def first_time(self, head: bytes) -> str | None:
        return None

    def read(self, reading: Any, environment: Any) -> Iterator[Any]:
        yield from ()


def page(value: Any, provenance: Provenance, skipped: Counter[str]) -> Iterator[dict[str, Any]]:
    skipped["pages"] += 1
    yield {"session_id": provenance.native_id}
    if "text" not in value:
        raise InvalidItem("a page has a text")


@pytest.fixture
def materializers() -> Materializers:
    found = Materializers()
    found.register(Materializer("diary.page", DATASET, page), "diary-for-hyp")
    found.register(Materializer("diary.cover", "diary_pages", page), "diary-for-hyp")
    return found


def fault(thing: Any, materializers: Materializers) -> ProviderFault:
    with pytest.raises(ProviderFault) as caught:
        checked(thing, Diary(), materializers)
    return caught.value


def test_an_item_may_be_a_dataclass_or_a_mapping(materializers: Materializers) -> None:
    assert checked(ITEM, Diary(), materializers) == ITEM
    assert checked(AS_MAPPING, Diary(), materializers) == ITEM


def test_a_source_path_may_be_a_path_object(materializers: Materializers) -> None:
    provenance = {**AS_MAPPING["provenance"], "source_path": Path("/home/dev/.diary/monday")}  # type: ignore[dict-item]

    assert checked({**AS_MAPPING, "provenance": provenance}, Diary(), materializers) == ITEM


@pytest.mark.parametrize(
    "event",
    [
        Event("unsupported_location", {"path": "/a"}),
        {"event": "unsupported_location", "path": "/a"},
        {"name": "unsupported_location", "path": "/a"},
        {"name": "unsupported_location", "facts": {"path": "/a"}},
    ],
)
def test_an_event_may_be_a_dataclass_or_a_mapping(event: Any, materializers: Materializers) -> None:
    assert checked(event, Diary(), materializers) == Event("unsupported_location", {"path": "/a"})


@pytest.mark.hazard(48)
@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (None, "None"),
        ("a row", "'a row'"),
        ({}, "neither an item nor an event"),
        ({"session_id": "a row"}, "neither an item nor an event"),
        ([ITEM], "neither an item nor an event"),
        ({"dataset": DATASET, "kind": "diary.page"}, "lacks provenance, value"),
        ({**AS_MAPPING, "rows": []}, "'rows'"),
        ({**AS_MAPPING, "kind": None}, "the kind of an item is None"),
        ({**AS_MAPPING, "provenance": None}, "the provenance of an item is None"),
        ({**AS_MAPPING, "provenance": {"client_name": "diary"}}, "lacks native_id, source_path"),
        (Item(DATASET, "diary.page", {}, None), "the provenance of an item is None"),  # type: ignore[arg-type]
        (Item("", "diary.page", {}, FROM), "the dataset of an item is ''"),
        (Item(DATASET, "diary.page", {}, Provenance("diary", "/a", 7)), "the native_id of an item is 7"),  # type: ignore[arg-type]
        (Event("Not a name"), "'Not a name'"),
        (Event("a" * 100), "name"),
        (Event("looked", None), "facts"),  # type: ignore[arg-type]
        ({"event": "looked", 7: 8}, "facts"),
    ],
)
def test_a_value_that_is_neither_item_nor_event_fails_the_provider(
    thing: Any, said: str, materializers: Materializers
) -> None:
    found = fault(thing, materializers)

    assert found.kind == "invalid_yield"
    assert said in found.message


@pytest.mark.hazard(48)
def test_an_item_of_an_unknown_kind_fails_the_provider(materializers: Materializers) -> None:
    found = fault(Item(DATASET, "diary.photo", {}, FROM), materializers)

    assert found.kind == "materializer_missing"
    assert "diary.photo" in found.message
    assert "diary.page" in found.message


@pytest.mark.hazard(48)
def test_a_broken_materializer_is_reported_with_its_error(materializers: Materializers) -> None:
    materializers.broken.append(
        Plugin("hypaware.materializers", "diary.photo", "photos", "1", "photos:IT", "broken", "no luck")
    )

    found = fault(Item(DATASET, "diary.photo", {}, FROM), materializers)

    assert (found.kind, "from photos, is broken: no luck" in found.message) == ("materializer_missing", True)


@pytest.mark.hazard(48)
@pytest.mark.parametrize(
    ("item", "said"),
    [
        (Item("elsewhere", "diary.page", {}, FROM), "declares only ai_gateway_messages, diary_pages"),
        (Item(DATASET, "diary.cover", {}, FROM), "become rows of diary_pages"),
    ],
)
def test_an_item_for_an_undeclared_dataset_fails_the_provider(
    item: Item, said: str, materializers: Materializers
) -> None:
    found = fault(item, materializers)

    assert found.kind == "dataset_mismatch"
    assert said in found.message


@pytest.mark.hazard(48)
def test_an_item_for_an_unregistered_dataset_fails_the_provider(materializers: Materializers) -> None:
    found = fault(Item("diary_pages", "diary.cover", {}, FROM), materializers)

    assert (found.kind, found.message) == ("dataset_not_registered", "no dataset diary_pages is registered")


def test_a_provider_fault_survives_pickling(materializers: Materializers) -> None:
    found = pickle.loads(pickle.dumps(fault(None, materializers)))

    assert isinstance(found, ProviderFault)
    assert found.as_json() == fault(None, materializers).as_json()


def test_materializing_an_item_counts_skipped_parts() -> None:
    skipped: Counter[str] = Counter()

    rows = list(rows_of(ITEM, Materializer("diary.page", DATASET, page), skipped))

    assert rows == [{"session_id": "monday"}]
    assert skipped == {"pages": 1}


@pytest.mark.hazard(48)
def test_a_value_that_the_materializer_rejects_fails_the_provider() -> None:
    materializer = Materializer("diary.page", DATASET, page)

    with pytest.raises(ProviderFault, match=r"an item of kind diary\.page: a page has a text") as caught:
        list(rows_of(Item(DATASET, "diary.page", {}, FROM), materializer, Counter()))

    assert caught.value.kind == "invalid_yield"


def test_find_yields_files_and_events() -> None:
    found = Found(Path("/home/dev/.diary/monday"), 7)

    assert checked_source(found) is found
    assert checked_source({"event": "unsupported_location", "path": "/a"}) == Event(
        "unsupported_location", {"path": "/a"}
    )


@pytest.mark.hazard(48)
@pytest.mark.parametrize(
    "thing",
    [
        None,
        Path("/home/dev/.diary/monday"),
        Found("/home/dev/.diary/monday"),  # type: ignore[arg-type]
        Found(Path("/home/dev/.diary/monday"), -1),
        Found(Path("/home/dev/.diary/monday"), "7"),  # type: ignore[arg-type]
        ITEM,
    ],
)
def test_an_invalid_value_from_find_fails_the_provider(thing: Any) -> None:
    with pytest.raises(ProviderFault) as caught:
        checked_source(thing)

    assert caught.value.kind == "invalid_yield"
