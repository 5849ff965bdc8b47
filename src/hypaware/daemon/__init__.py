"""The daemon: one background process per home that runs the gateway and the periodic tasks.

It imports transcripts, flushes the spool, exports to sinks on schedule and maintains the lake. It never starts Spark
in its own process: each of these is a job of the home's engine, requested only when there is work to do.
"""
