"""`make demo`: HypAware from set-up to delivery, in a temporary home, with a verdict that is computed from the data.

    python -m demo [--history sample|own] [--keep]

`stage` has the temporary folders and what runs in them, `story` the chapters, `telling` how they are told, `provider`
and `client` the two ends of a live exchange, `verdict` the independent look at the end. `history/` holds sessions of a
developer who does not exist, as Claude Code and Codex would have written them.
"""
