"""SQL of DuckDB over the result of a query, in the same process."""

import duckdb

import hypaware

lake = hypaware.open_lake()  # HYP_HOME, or ~/.hyp

messages = lake.query("SELECT session_id, role, length(content_text) AS size FROM ai_gateway_messages")
# DuckDB reads the Arrow table by the name of the variable.
print(duckdb.sql("SELECT role, count(*) AS parts, median(size) AS median_size FROM messages GROUP BY ALL ORDER BY ALL"))
print(duckdb.sql("SELECT count(DISTINCT session_id) FROM messages").fetchall()[0][0], "sessions")
