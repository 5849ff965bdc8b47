"""Prices: which model has which, the cost of tokens, and the user's own file."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from hypaware.errors import ConfigError
from hypaware.home import Home
from hypaware.index.prices import Cost, ModelPrice, PriceTable, TokenCounts, load_prices, read_prices

PRICE = {"input": 5, "output": 25, "cache_read": 0.5, "cache_write_5m": 6.25, "cache_write_1h": 10}


def table(**models: dict[str, Any]) -> PriceTable:
    from hypaware.index.prices import _to_table

    return _to_table(
        {"as_of": "2026-11-15", "models": {name.replace("_", "-"): price for name, price in models.items()}}
    )


def cost(prices: PriceTable, model: str | None, **tokens: int) -> float | None:
    sum_ = Cost()
    sum_.add_response(prices, model, TokenCounts(**tokens))
    return sum_.usd


@pytest.mark.parametrize(
    "model",
    [
        *("opus-4", "opus-4-20250514", "opus-4@20250514", "opus-4[1m]", "opus-4-latest", "anthropic/opus-4", "OPUS-4"),
        *("us.anthropic.opus-4-20250514-v1:0", "openrouter/anthropic/opus-4", "opus-4-2025-05-14", "opus-4:beta"),
    ],
)
def test_a_price_belongs_to_all_forms_of_a_models_name(model: str) -> None:
    assert table(opus_4=PRICE).find(model) is not None


@pytest.mark.parametrize("model", ["opus-4-9", "opus-4.1", "opus-40", "opus", "opus-4-fast", "my-opus-4", "", None])
def test_another_version_of_a_model_does_not_get_its_price(model: str | None) -> None:
    assert table(opus_4=PRICE).find(model) is None


def test_a_key_with_an_asterisk_is_the_beginning_of_names_and_the_longest_one_counts() -> None:
    prices = table(**{"local-*": {**PRICE, "input": 1}, "local-big-*": {**PRICE, "input": 2}, "local_small": PRICE})

    found = [prices.find(model) for model in ("local-a", "local-big-a", "local-small", "other")]
    assert [price and price.input for price in found] == [1, 2, 5, None]


def test_each_kind_of_token_has_its_price() -> None:
    prices = table(opus=PRICE)
    million = 1_000_000

    assert cost(prices, "opus", input=million) == 5
    assert cost(prices, "opus", output=million) == 25
    assert cost(prices, "opus", cache_read=million) == 0.5
    assert cost(prices, "opus", cache_write=million) == 6.25
    assert cost(prices, "opus", cache_write=million, cache_write_1h=400_000) == pytest.approx(0.6 * 6.25 + 0.4 * 10)
    # Reasoning is part of the output.
    assert cost(prices, "opus", output=million, reasoning=million) == 25


def test_a_response_with_a_long_prompt_costs_more_as_a_whole() -> None:
    prices = table(sonnet={**PRICE, "long": {"over": 200_000, "input": 10, "output": 50}})

    assert cost(prices, "sonnet", input=200_000) == pytest.approx(1.0)
    assert cost(prices, "sonnet", input=200_001, output=1000) == pytest.approx(2.00001 + 0.05)
    assert cost(prices, "sonnet", input=100_001, cache_read=100_000) == pytest.approx(2.00001)


def test_tokens_without_a_price_are_named_and_not_free() -> None:
    sum_, prices = Cost(), table(opus=PRICE)
    sum_.add(prices, "new-model", TokenCounts(output=5))
    sum_.add(prices, None, TokenCounts(output=5))
    sum_.add(prices, "unused", TokenCounts())
    assert sum_.as_document() == {"cost_usd": None, "unpriced_models": ["(unknown)", "new-model"]}

    sum_.add(prices, "opus", TokenCounts(output=1_000_000))
    assert sum_.as_document() == {"cost_usd": 25.0, "unpriced_models": ["(unknown)", "new-model"]}


def test_missing_prices_of_cached_tokens_are_those_of_the_input() -> None:
    assert table(gpt={"input": 2, "output": 8}).find("gpt") == ModelPrice(2, 8, 2, 2, 2)
    assert table(gpt={"input": 2, "output": 8, "cache_write_5m": 3}).find("gpt") == ModelPrice(2, 8, 2, 3, 3)


def test_the_packages_table_prices_the_models_of_claude_code_and_codex() -> None:
    prices = read_prices()

    assert date.fromisoformat(prices.as_of) >= date(2026, 11, 1)
    assert all(price.cache_read <= price.input < price.output for price in prices.models.values())
    for model in (
        "claude-opus-5-5",
        "claude-sonnet-4-5-20250929",
        "claude-haiku-4-5-20251001",
        "gpt-5-codex",
        "gpt-6.1-sol",
    ):
        assert prices.find(model) is not None
    assert prices.find("claude-opus-5-5") == ModelPrice(4, 20, 0.2, 5, 8)


def test_prices_of_claude_follow_the_multiples_of_anthropic() -> None:
    for name, price in read_prices().models.items():
        if name.startswith("claude-") and name != "claude-3-haiku":
            assert price.cache_write_5m == pytest.approx(1.25 * price.input), name
            assert price.cache_write_1h == pytest.approx(2 * price.input), name


@pytest.mark.parametrize("place", ["absolute", "relative"])
def test_the_file_that_the_config_names_replaces_the_packages_prices(tmp_path: Path, place: str) -> None:
    home = Home(tmp_path)
    (tmp_path / "mine.json").write_text(json.dumps({"as_of": "2026-01-02", "models": {"mine": PRICE}}))
    path = str(tmp_path / "mine.json") if place == "absolute" else "mine.json"
    home.config.write_text(f"version = 1\n[usage]\nprices = {json.dumps(path)}\n")

    prices = load_prices(home)

    assert (prices.as_of, list(prices.models)) == ("2026-01-02", ["mine"])
    assert load_prices(Home(tmp_path / "other")).as_of != "2026-01-02"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected an object"),
        ('{"models": {}}', '"as_of" must be a day'),
        ('{"as_of": "soon", "models": {}}', '"as_of" must be a day'),
        ('{"as_of": "2026-01-02", "models": {"a": 3}}', "a: expected an object"),
        ('{"as_of": "2026-01-02", "models": {"a": {"input": 3}}}', "a: a price needs both input and output"),
        ('{"as_of": "2026-01-02", "models": {"a": {"inptu": 3}}}', "a: unknown key 'inptu'; known: input, output"),
        (
            '{"as_of": "2026-01-02", "models": {"a": {"input": -1, "output": 1}}}',
            "a: input must be a number of dollars",
        ),
        ('{"as_of": "2026-01-02", "models": {"a": {"input": true, "output": 1}}}', "a: input must be a number"),
        ('{"as_of": "2026-01-02", "models": {"a": {"input": NaN, "output": 1}}}', "a: input must be a number"),
        (
            '{"as_of": "2026-01-02", "models": {"a": {"input": 1, "output": 2, "long": {"over": 5}}}}',
            'a: "long" must be an object with prices and "over", which is one of 100000, 200000, 272000',
        ),
    ],
)
def test_an_invalid_file_of_prices_is_an_error_that_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prices.json"
    path.write_text(text)

    with pytest.raises(ConfigError) as raised:
        read_prices(path)

    assert str(path) in raised.value.message
    assert message in raised.value.message


def test_a_missing_file_of_prices_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the prices"):
        read_prices(tmp_path / "none.json")
