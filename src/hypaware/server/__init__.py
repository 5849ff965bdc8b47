"""The central server: batches of many gateways over HTTP, into the same spool, state, flush and lake.

A batch is one segment file. It is durable before the ledger knows it, known before it may be flushed, and only then
acknowledged. No part of this package needs Spark: an engine commits what waits.
"""
