"""What property tests draw from."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

# JSON as a parser gives it: what a hostile or a careless producer may put anywhere.
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
