"""The small transactional store of a home: what belongs together is one transaction.

Identity, allocator, segments, flushes, high water. Knows no Spark and no lake.
"""
