"""The spool: rows that are durable on disk and not yet committed to the lake.

A segment is a JSONL file that one process writes (in `active/`) and then seals (in `sealed/`). A sealed segment is
immutable and has its row count in its name. The folders are the state machine, so `ls` shows the state of every row.
"""
