"""Keeping a lake: compaction, retention, expiry, purge, rebuild. It knows that there are sinks, not what they are."""
