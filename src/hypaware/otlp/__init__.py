"""The OTLP receiver: stores the telemetry that clients and other programs send over OTLP/HTTP as rows.

A request is acknowledged when its rows are durable in the spool. This package needs the extra `hypaware[otlp]`; the
daemon imports it only if `otlp.listen` is set.
"""
