"""Purge: delete rows from every place of a home that can hold them, and keep them from coming back.

    tombstones · flush · find · rewrite · commit · forget · rejects, dead letters · free pages · verify

Tombstones are durable before the first row is deleted. If the process is killed at any point, no purged row comes back,
other rows are unharmed, and the same command finishes the purge; until then `hyp verify` reports it.
"""
