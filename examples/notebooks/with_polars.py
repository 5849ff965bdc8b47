"""The tools that are used most, with polars."""

import polars as pl

import hypaware

lake = hypaware.open_lake()  # HYP_HOME, or ~/.hyp

# Arrow goes to polars without a copy.
calls = pl.from_arrow(lake.query("SELECT tool_name, session_id FROM ai_gateway_messages WHERE part_type = 'tool_call'"))
assert isinstance(calls, pl.DataFrame)
print(calls.group_by("tool_name").agg(pl.len().alias("calls"), pl.col("session_id").n_unique()).sort("calls"))

usage = pl.DataFrame(lake.usage(by="client")["rows"])
print(usage.select("key", "sessions", "cost_usd"))
print(len(lake.sessions()["sessions"]), "sessions")
