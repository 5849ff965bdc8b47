"""The server: receives batches from many gateways over HTTP into its own spool, state and lake.

A batch becomes one segment file. The file is durable before the batch is entered in the ledger; a batch is in the
ledger before its file can be flushed, and only then is it acknowledged. This package does not use Spark: an engine
commits the spool.
"""
