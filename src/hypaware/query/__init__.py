"""Run read-only SQL over the lake.

The guard lets one SELECT over the datasets through; views show only public columns; results are read as Arrow batches
and written in one of several formats.
"""
