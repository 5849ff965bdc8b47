"""The lake: Iceberg tables, and the single path by which rows enter them.

Every flush and every import takes the same steps: recover, reserve, build, commit, fsync, record, remove. Spark runs
them in production and a lightweight substitute runs them in tests; both implement the protocols of `table`.
"""

# Small enough for a read after a sequence to skip most of a day; large enough for a year to have few hundred files.
TARGET_FILE_BYTES = 32 << 20
