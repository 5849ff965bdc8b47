"""The transactional store of a home (`state.db`) and its mirror: identity, sequences, flushes and deliveries.

This package also opens a home. It uses neither Spark nor the spool.
"""
