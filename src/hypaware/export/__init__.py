"""Deliver the rows of the lake to each sink exactly once.

A stream is (sink, dataset, source). Its rows are cut into chunks by sequence. A chunk's identity is its range alone,
and the range is durable before the first byte leaves. `delivery` runs the rounds of all streams; `sinks/` has the kinds
of destination.
"""
