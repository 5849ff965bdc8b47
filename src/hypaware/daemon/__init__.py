"""The daemon: one background process per home that runs the gateway and the periodic tasks.

It never starts Spark in its own process: its tasks request jobs of the home's engine, only when there is work to do.
"""
