"""The collector: one process per home that delivers by schedule, commits the spool now and then, and minds the engine.

It is small and starts no Spark of its own: rounds and flushes are jobs of the home's engine, started when there is
something to do. `service` runs the parts, `instance` sees to it that there is one, `condition` tells how it is.
"""
