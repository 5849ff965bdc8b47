"""The `hyp` command: parses, calls, prints. It holds no logic of its own."""
