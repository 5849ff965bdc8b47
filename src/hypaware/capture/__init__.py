"""Live capture: the gateway between clients and their providers, and what it records of their traffic."""
