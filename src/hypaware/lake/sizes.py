"""Target size of data files."""

# Small enough for a read after a sequence to skip most of a day; large enough for a year to have few hundred files.
TARGET_BYTES = 32 << 20
