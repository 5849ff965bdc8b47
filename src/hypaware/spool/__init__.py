"""Rows on their way to the lake, durable from the moment they are acknowledged.

A segment is a JSONL file that one process writes (`active/`) and then seals (`sealed/`): immutable from there on,
its row count in its name. The folders are the state machine, so `ls` shows where each row stands.
"""
