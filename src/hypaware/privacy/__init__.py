"""Privacy: which sessions and folders are recorded and exported, and how secrets are redacted."""
