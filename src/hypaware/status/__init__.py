"""How everything is: one snapshot of a home (`snapshot.gather`), and the deeper checks (`checks`).

Looks and changes nothing. A module for each part of the snapshot gives its facts and what to say of them.
"""
