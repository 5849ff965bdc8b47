from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypaware.backfill.providers import MaterializerRegistry, ProviderFault, find_sources, validate_yield
from hypaware.backfill.request import UNRESTRICTED
from hypaware.backfill.source_rows import ImportContext, SourcePiece, SourceReport
from hypaware.clients.client import ImportItem, InvalidItem, Materializer, Provenance, ProviderEvent, Source
from hypaware.clients.reader import SourceSnapshot
from hypaware.lake.build import BuildResult
from hypaware.model import datasets
from hypaware.plugins import Plugin

DATASET = "ai_gateway_messages"
FROM = Provenance("diary", "/home/dev/.diary/monday", "monday")
ITEM = ImportItem(DATASET, "diary.page", {"text": "rain"}, FROM)
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

    def __init__(self, *found: Any) -> None:
        self._found = found

    def find(self, environment: Any) -> Iterator[Any]:
        yield from self._found

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
def materializers() -> MaterializerRegistry:
    found = MaterializerRegistry()
    found.register(Materializer("diary.page", DATASET, page), "diary-for-hyp")
    found.register(Materializer("diary.cover", "diary_pages", page), "diary-for-hyp")
    return found


def fault(thing: Any, materializers: MaterializerRegistry) -> ProviderFault:
    with pytest.raises(ProviderFault) as caught:
        validate_yield(thing, Diary(), materializers)
    return caught.value


def test_an_item_may_be_a_dataclass_or_a_mapping(materializers: MaterializerRegistry) -> None:
    assert validate_yield(ITEM, Diary(), materializers) == ITEM
    assert validate_yield(AS_MAPPING, Diary(), materializers) == ITEM


def test_a_source_path_may_be_a_path_object(materializers: MaterializerRegistry) -> None:
    provenance = {**AS_MAPPING["provenance"], "source_path": Path("/home/dev/.diary/monday")}  # type: ignore[dict-item]

    assert validate_yield({**AS_MAPPING, "provenance": provenance}, Diary(), materializers) == ITEM


@pytest.mark.parametrize(
    "event",
    [
        ProviderEvent("unsupported_location", {"path": "/a"}),
        {"event": "unsupported_location", "path": "/a"},
        {"name": "unsupported_location", "path": "/a"},
        {"name": "unsupported_location", "facts": {"path": "/a"}},
    ],
)
def test_an_event_may_be_a_dataclass_or_a_mapping(event: Any, materializers: MaterializerRegistry) -> None:
    assert validate_yield(event, Diary(), materializers) == ProviderEvent("unsupported_location", {"path": "/a"})


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
        (ImportItem(DATASET, "diary.page", {}, None), "the provenance of an item is None"),  # type: ignore[arg-type]
        (ImportItem("", "diary.page", {}, FROM), "the dataset of an item is ''"),
        (ImportItem(DATASET, "diary.page", {}, Provenance("diary", "/a", 7)), "the native_id of an item is 7"),  # type: ignore[arg-type]
        (ProviderEvent("Not a name"), "'Not a name'"),
        (ProviderEvent("a" * 100), "name"),
        (ProviderEvent("looked", None), "facts"),  # type: ignore[arg-type]
        ({"event": "looked", 7: 8}, "facts"),
    ],
)
def test_a_value_that_is_neither_item_nor_event_fails_the_provider(
    thing: Any, said: str, materializers: MaterializerRegistry
) -> None:
    found = fault(thing, materializers)

    assert found.kind == "invalid_yield"
    assert said in found.message


@pytest.mark.hazard(48)
def test_an_item_of_an_unknown_kind_fails_the_provider(materializers: MaterializerRegistry) -> None:
    found = fault(ImportItem(DATASET, "diary.photo", {}, FROM), materializers)

    assert found.kind == "materializer_missing"
    assert "diary.photo" in found.message
    assert "diary.page" in found.message


@pytest.mark.hazard(48)
def test_a_broken_materializer_is_reported_with_its_error(materializers: MaterializerRegistry) -> None:
    materializers.broken.append(
        Plugin("hypaware.materializers", "diary.photo", "photos", "1", "photos:IT", "broken", "no luck")
    )

    found = fault(ImportItem(DATASET, "diary.photo", {}, FROM), materializers)

    assert (found.kind, "from photos: no luck" in found.message) == ("materializer_missing", True)


@pytest.mark.hazard(48)
@pytest.mark.parametrize(
    ("item", "said"),
    [
        (ImportItem("elsewhere", "diary.page", {}, FROM), "declares only ai_gateway_messages, diary_pages"),
        (ImportItem(DATASET, "diary.cover", {}, FROM), "become rows of diary_pages"),
    ],
)
def test_an_item_for_an_undeclared_dataset_fails_the_provider(
    item: ImportItem, said: str, materializers: MaterializerRegistry
) -> None:
    found = fault(item, materializers)

    assert found.kind == "dataset_mismatch"
    assert said in found.message


@pytest.mark.hazard(48)
def test_an_item_for_an_unregistered_dataset_fails_the_provider(materializers: MaterializerRegistry) -> None:
    found = fault(ImportItem("diary_pages", "diary.cover", {}, FROM), materializers)

    assert (found.kind, found.message) == ("dataset_not_registered", "no dataset diary_pages is registered")


def test_a_provider_fault_survives_pickling(materializers: MaterializerRegistry) -> None:
    found = pickle.loads(pickle.dumps(fault(None, materializers)))

    assert isinstance(found, ProviderFault)
    assert found.as_json() == fault(None, materializers).as_json()


def read_item(item: ImportItem) -> tuple[BuildResult, SourceReport]:
    context = ImportContext("diary", DATASET, {}, "gateway")
    piece = SourcePiece(context, 1, 10, SourceSnapshot(Path(FROM.source_path), 1, 1, 1))
    built, report = BuildResult(), SourceReport(FROM.source_path)
    materializer = Materializer("diary.page", DATASET, page)
    dataset, row_filter = datasets.get(DATASET), UNRESTRICTED.row_filter()
    assert list(piece._item_rows(item, materializer, row_filter, dataset, built, report)) == []
    return built, report


def test_materializing_an_item_counts_skipped_parts() -> None:
    built, report = read_item(ITEM)

    assert [reject.line for reject in built.rejects] == [b'{"session_id":"monday"}'], "a row without a time"
    assert report.skipped == {"pages": 1}


@pytest.mark.hazard(48)
def test_a_value_that_the_materializer_rejects_fails_the_provider() -> None:
    with pytest.raises(ProviderFault, match=r"an item of kind diary\.page: a page has a text") as caught:
        read_item(ImportItem(DATASET, "diary.page", {}, FROM))

    assert caught.value.kind == "invalid_yield"


def test_find_yields_files_and_events() -> None:
    found = Source(Path("/home/dev/.diary/monday"), 7)

    assert list(find_sources(Diary(found, {"event": "unsupported_location", "path": "/a"}), {})) == [
        found,
        ProviderEvent("unsupported_location", {"path": "/a"}),
    ]


@pytest.mark.hazard(48)
@pytest.mark.parametrize(
    "thing",
    [
        None,
        Path("/home/dev/.diary/monday"),
        Source("/home/dev/.diary/monday"),  # type: ignore[arg-type]
        Source(Path("/home/dev/.diary/monday"), -1),
        Source(Path("/home/dev/.diary/monday"), "7"),  # type: ignore[arg-type]
        ITEM,
    ],
)
def test_an_invalid_value_from_find_fails_the_provider(thing: Any) -> None:
    with pytest.raises(ProviderFault) as caught:
        list(find_sources(Diary(thing), {}))

    assert caught.value.kind == "invalid_yield"
