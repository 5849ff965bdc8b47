"""`make demo`: HypAware from setup to delivery, in a temporary home, with a verdict that is computed from the data.

    python -m demo [--history sample|own] [--keep]

`stage` creates the temporary folders and runs commands in them, `story` has the chapters, `console` prints them,
`provider` and `client` are the two ends of a live exchange, and `verdict` compares both lakes independently. `history/`
holds sample sessions in the formats of Claude Code and Codex.
"""
