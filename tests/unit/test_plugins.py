from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hypaware import plugins
from hypaware.model.datasets import Dataset
from tests.support.plugin_distributions import install


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed distributions on the import path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def dataset_code(name: str) -> str:
    return (
        "from hypaware.model.columns import Column, ColumnType\n"
        "from hypaware.model.datasets import Dataset\n"
        f"MINE = Dataset(name={name!r}, about='', time_column='at', source_columns=(), key_column='id', columns=(\n"
        "    Column('at', ColumnType.TIMESTAMP, ''), Column('id', ColumnType.STRING, '')))\n"
    )


def found(name: str, distribution: str) -> plugins.Plugin:
    return next(p for p in plugins.list_plugins() if (p.name, p.distribution) == (name, distribution))


def test_the_built_in_dataset_registers_like_a_plugin() -> None:
    one = found("ai_gateway_messages", "hypaware")

    assert (one.group, one.status, one.error) == ("hypaware.datasets", "ok", None)
    assert one.value == "hypaware.model.schemas:AI_GATEWAY_MESSAGES"


def test_a_plugin_is_found_with_its_distribution_and_version(site: Path) -> None:
    install(site, "my-plugin", "[hypaware.datasets]\nmine = mine_ok:MINE\n", "mine_ok", dataset_code("mine"))

    one = found("mine", "my-plugin")

    assert (one.version, one.value, one.status) == ("1.2.3", "mine_ok:MINE", "ok")
    assert "mine" in [dataset.name for dataset in plugins.load_plugins(plugins.DATASETS, Dataset)]
    assert "mine" in plugins.plugin_names(plugins.DATASETS)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise RuntimeError('no luck')", "RuntimeError: no luck"),
        ("import does_not_exist_anywhere", "ModuleNotFoundError"),
        ("def (", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("OTHER = 1", "AttributeError"),
        ("MINE = 'text'", "is a str, not a Dataset"),
        (dataset_code("ai_gateway_messages"), "has the name 'ai_gateway_messages'"),
    ],
)
def test_a_broken_plugin_is_reported_and_does_not_affect_others(site: Path, code: str, said: str) -> None:
    install(site, "broken-plugin", "[hypaware.datasets]\nmine = mine_broken:MINE\n", "mine_broken", code)

    one = found("mine", "broken-plugin")

    assert one.status == "broken"
    assert one.error is not None
    assert said in one.error
    assert found("ai_gateway_messages", "hypaware").status == "ok"
    names = [dataset.name for dataset in plugins.load_plugins(plugins.DATASETS, Dataset)]
    assert names.count("ai_gateway_messages") == 1
    assert "mine" not in names


def test_a_plugin_cannot_use_a_registered_name(site: Path) -> None:
    entry = "[hypaware.datasets]\nai_gateway_messages = mine_taken:MINE\n"
    install(site, "a-thief", entry, "mine_taken", dataset_code("ai_gateway_messages"))

    thief = found("ai_gateway_messages", "a-thief")

    assert (thief.status, thief.error) == ("broken", "the name ai_gateway_messages belongs to hypaware")
    assert found("ai_gateway_messages", "hypaware").status == "ok"


def test_plugin_names_are_listed_without_loading_plugins(site: Path) -> None:
    install(site, "lazy", "[hypaware.sinks]\nkafka = never_imported:SINK\n")

    assert plugins.plugin_names(plugins.SINKS) == ("blob", "forward", "iceberg", "kafka")
    assert "never_imported" not in sys.modules
