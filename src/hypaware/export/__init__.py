"""Deliver the rows of the lake to each sink exactly once.

A stream is (sink, dataset, source). Its rows are cut into chunks by sequence. A chunk's identity is its range alone,
and the range is durable before the first byte leaves. `driver` runs the rounds; `sinks/` has the kinds of destination.
"""
