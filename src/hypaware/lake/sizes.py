"""How large data files should be."""

# Small enough that a read since a sequence skips most of a day, large enough that a year is some hundred files.
TARGET_BYTES = 32 << 20
