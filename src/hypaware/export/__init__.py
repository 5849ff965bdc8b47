"""Delivery: what the lake holds, once to each destination.

A stream is (sink, dataset, source). Its rows are cut into chunks by sequence; a chunk's identity is its range and
nothing else, written down before its first byte leaves. `driver` runs the rounds, `sinks/` know destinations.
"""
