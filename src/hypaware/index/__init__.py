"""The reading index: `index.db`, derived from the lake and the spool, and the queries that it answers without Spark."""
