"""What tokens cost: a dated table of prices by model, and the cost of a number of tokens.

The table is `prices.json` of this package, or the user's own file in the same format, which replaces it (`usage.prices`
in the config). Prices are in US dollars per million tokens:

    {"as_of": "2026-11-15",
     "models": {"claude-opus-4-5": {"input": 5, "output": 25, "cache_read": 0.5, "cache_write_5m": 6.25,
                                    "cache_write_1h": 10}}}

A price belongs to the model of this name and to its dated and tagged forms: `claude-opus-4-5-20251101`,
`claude-opus-4-5@20251101`, `claude-opus-4-5[1m]`, `anthropic/claude-opus-4-5`, `us.anthropic.claude-opus-4-5-v1:0`. A
key that ends with `*` is the beginning of names; the longest one counts, after exact names. So a new model such as
`claude-opus-4-9` never gets the price of `claude-opus-4`. A missing `cache_read` costs as much as `input`, a missing
`cache_write_5m` too, and a missing `cache_write_1h` as much as `cache_write_5m`. A model without a price has no cost:
it is reported by name and never counted as free.

`long` holds the prices of responses whose prompt (input and cache, read and written) has more tokens than its `over`:

    "claude-sonnet-4-5": {"input": 3, "output": 15, …, "long": {"over": 200000, "input": 6, "output": 22.5, …}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from hypaware.errors import ConfigError
from hypaware.home import Home
from hypaware.index.schema import LONG_PROMPTS

_PACKAGED = Path(__file__).with_name("prices.json")
_KINDS = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
_MILLION = 1_000_000
_REPAIR = "hyp config show"
_PROVIDER = re.compile(r"(?:.*/)?(?:(?:[a-z]+\.)?(?:anthropic|openai)\.)?")
_FORM = re.compile(r"(?:@.*|:.*|\[.*\]|-latest|-v\d+(?::\d+)?|-20\d{6}|-20\d\d-\d\d-\d\d)$")
LongTokens = Mapping[int, "TokenCounts"]
"""Tokens of responses with long prompts, by the size that the prompts exceed (one of LONG_PROMPTS)."""
UNKNOWN_MODEL = "(unknown)"
"""The name under which tokens of rows without a model are reported."""


class TokenCounts(NamedTuple):
    """The sums of a group of rows, in the order of the columns of `activity`. Reasoning is part of the output."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cache_write_1h: int = 0

    def __add__(self, other: TokenCounts) -> TokenCounts:  # type: ignore[override]
        # Written out: this is called for every session and day.
        input_, output, cache_read, cache_write, reasoning, cache_write_1h = other
        return TokenCounts(
            self[0] + input_,
            self[1] + output,
            self[2] + cache_read,
            self[3] + cache_write,
            self[4] + reasoning,
            self[5] + cache_write_1h,
        )

    @property
    def prompt(self) -> int:
        return self.input + self.cache_read + self.cache_write

    def as_document(self) -> dict[str, int]:
        # Written out: this is called for every session.
        return {
            "input": self[0],
            "output": self[1],
            "cache_read": self[2],
            "cache_write": self[3],
            "reasoning": self[4],
        }


class ModelPrice(NamedTuple):
    """US dollars per million tokens."""

    input: float
    output: float
    cache_read: float
    cache_write_5m: float
    cache_write_1h: float
    over: int = 0
    """If not 0, `long` applies to responses whose prompt has more tokens."""
    long: ModelPrice | None = None

    def cost_of(self, tokens: tuple[int, ...]) -> float:
        """Return the cost of tokens (those of TokenCounts) of responses with short prompts."""
        # By position: this is called for every session.
        input_, output, cache_read, cache_write, _, cache_write_1h = tokens
        long_kept = min(cache_write_1h, cache_write)
        return (
            input_ * self[0]
            + output * self[1]
            + cache_read * self[2]
            + (cache_write - long_kept) * self[3]
            + long_kept * self[4]
        ) / _MILLION

    def add_cost(self, usd: float, tokens: tuple[int, ...], long: LongTokens | None) -> float:
        """Add the cost of tokens to an amount. `long` is the part of them that is due to long prompts."""
        usd += self.cost_of(tokens)
        if long and self.long is not None:
            for over, counts in long.items():
                if over >= self.over:
                    usd += self.long.cost_of(counts) - self.cost_of(counts)
        return usd


class PriceTable:
    def __init__(self, as_of: str, models: Mapping[str, ModelPrice]) -> None:
        self.as_of = as_of
        self.models = models
        self._found: dict[str, ModelPrice | None] = {}

    def find(self, model: str | None) -> ModelPrice | None:
        if not model:
            return None
        try:
            return self._found[model]
        except KeyError:
            self._found[model] = found = self._find(model)
            return found

    def list_long(self, names: Mapping[int | None, str | None]) -> list[int]:
        """Return the ids of those models whose responses to long prompts cost more."""
        found = ((id_, self.find(name)) for id_, name in names.items())
        return [id_ for id_, price in found if id_ and price is not None and price.long is not None]

    def _find(self, model: str) -> ModelPrice | None:
        name = _PROVIDER.sub("", model.lower(), count=1)
        bare = name
        while bare not in self.models:
            if (shorter := _FORM.sub("", bare)) == bare:
                prefixes = [key for key in self.models if key.endswith("*") and name.startswith(key[:-1])]
                return self.models[max(prefixes, key=len)] if prefixes else None
            bare = shorter
        return self.models[bare]


class Cost:
    """Adds up what can be priced, and names what cannot."""

    __slots__ = ("unpriced", "usd")

    def __init__(self) -> None:
        self.usd: float | None = None
        self.unpriced: set[str] = set()

    def add(self, prices: PriceTable, model: str | None, tokens: TokenCounts, long: LongTokens | None = None) -> None:
        """Add tokens of any number of responses. `long` is the part of them that is due to long prompts."""
        if not any(tokens):
            return
        if (price := prices.find(model)) is None:
            self.unpriced.add(model or UNKNOWN_MODEL)
            return
        self.usd = price.add_cost(self.usd or 0.0, tokens, long)

    def add_response(self, prices: PriceTable, model: str | None, tokens: TokenCounts) -> None:
        """Add the tokens of one response."""
        over = max((size for size in LONG_PROMPTS if tokens.prompt > size), default=0)
        self.add(prices, model, tokens, {over: tokens} if over else None)

    @property
    def rounded(self) -> float | None:
        return None if self.usd is None else round(self.usd, 6)

    def list_unpriced(self) -> list[str]:
        return sorted(self.unpriced) if self.unpriced else []

    def as_document(self) -> dict[str, Any]:
        return {"cost_usd": self.rounded, "unpriced_models": self.list_unpriced()}


def load_prices(home: Home) -> PriceTable:
    """Return the prices of the file that the config names (`usage.prices`), or else of the package."""
    if not _may_name_prices(home):
        return read_prices()
    from hypaware import config

    path = config.load(home).usage.prices
    # A relative path is below the home.
    return read_prices(home.root / Path(path).expanduser() if path else _PACKAGED)


def _may_name_prices(home: Home) -> bool:
    """Return whether the config must be read; importing its schema takes longer than most answers."""
    try:
        return b"prices" in home.config.read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        return True  # loading it reports the problem


def read_prices(path: Path = _PACKAGED) -> PriceTable:
    """Read a file with prices. Raise ConfigError if it is invalid."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the prices {path}: {error.strerror}", repair=_REPAIR) from error
    except ValueError as error:
        raise ConfigError(f"the prices {path} are not valid JSON: {error}", repair=_REPAIR) from None
    try:
        return _to_table(document)
    except ValueError as error:
        raise ConfigError(f"the prices {path} are invalid: {error}", repair=_REPAIR) from None


def _to_table(document: Any) -> PriceTable:
    if not isinstance(document, dict) or not isinstance(models := document.get("models"), dict):
        raise ValueError('expected an object {"as_of": "2026-11-15", "models": {...}}')
    try:
        as_of = date.fromisoformat(document["as_of"]).isoformat()
    except (KeyError, TypeError, ValueError):
        raise ValueError('"as_of" must be a day such as "2026-11-15"') from None
    return PriceTable(as_of, {name.lower(): _to_price(name, given) for name, given in models.items()})


def _to_price(model: str, given: Any) -> ModelPrice:
    if not isinstance(given, dict):
        raise ValueError(f'{model}: expected an object such as {{"input": 5, "output": 25}}')
    long = given.get("long")
    price = _to_plain_price(model, {name: value for name, value in given.items() if name != "long"})
    if long is None:
        return price
    if not isinstance(long, dict) or long.get("over") not in LONG_PROMPTS:
        sizes = ", ".join(map(str, LONG_PROMPTS))
        raise ValueError(f'{model}: "long" must be an object with prices and "over", which is one of {sizes}')
    higher = _to_plain_price(f"{model}, long", {name: value for name, value in long.items() if name != "over"})
    return price._replace(over=long["over"], long=higher)


def _to_plain_price(model: str, given: dict[str, Any]) -> ModelPrice:
    for name, value in given.items():
        if name not in _KINDS:
            raise ValueError(f"{model}: unknown key {name!r}; known: {', '.join(_KINDS)}, long")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ValueError(f"{model}: {name} must be a number of dollars per million tokens, not {value!r}")
    if "input" not in given or "output" not in given:
        raise ValueError(f"{model}: a price needs both input and output")
    write = given.get("cache_write_5m", given["input"])
    read = given.get("cache_read", given["input"])
    return ModelPrice(given["input"], given["output"], read, write, given.get("cache_write_1h", write))
