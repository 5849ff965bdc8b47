"""The lake: Iceberg tables, and the single path by which rows enter them."""

# Small enough for a read after a sequence to skip most of a day; large enough for a year to have few hundred files.
TARGET_FILE_BYTES = 32 << 20
