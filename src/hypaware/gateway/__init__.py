"""The gateway: a local reverse proxy between clients and their providers that records their exchanges."""
