"""The health of a home: a quick snapshot for `hyp status`, and the deeper checks of `hyp doctor`.

Both only read. Each part of the snapshot returns facts and diagnostics.
"""
