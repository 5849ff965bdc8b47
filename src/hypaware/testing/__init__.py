"""Test support for authors of sinks: a destination with faults, a small lake, and the contract of every sink."""
