"""Purge: rows that are really removed, from every place of a home that can hold them, and that do not come back.

    tombstones · flush · find · rewrite · commit · forget · refused rows, dead letters · free pages · proof

Tombstones are durable before the first row goes. Killed at any point, no row that was purged comes back, nothing else
is harmed, and the same command finishes it; until then `hyp verify` shows it.
"""
