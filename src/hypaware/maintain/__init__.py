"""Maintenance of the lake: compaction, retention, expiry, rebuild, backup and restore, purge."""
