"""Tokens and errors per day and project, with pandas."""

import pandas as pd

import hypaware

lake = hypaware.open_lake()  # HYP_HOME, or ~/.hyp

# A query gives an Arrow table, and that a DataFrame. Times are pandas Timestamps with a zone.
parts = lake.query(
    """
    SELECT date, cwd, part_type, is_error, message_created_at
    FROM ai_gateway_messages WHERE provider_type IS DISTINCT FROM 'gateway'
    """
).to_pandas()
by_day = parts.groupby("date").agg(parts=("part_type", "size"), errors=("is_error", "sum"))
print(by_day.to_string())

# The commands' own figures are dictionaries: no Spark is started for them.
sessions = pd.json_normalize(lake.sessions()["sessions"])
print(sessions[["session_id", "client", "turns", "tokens.output", "cost_usd"]].to_string())
print(len(sessions), "sessions")
