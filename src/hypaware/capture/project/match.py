"""How live rows and imported ones meet: see `model.matching`."""

from hypaware.model.matching import is_live, match_keys

__all__ = ["is_live", "match_keys"]
