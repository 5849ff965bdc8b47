"""Recorded clients, one package each: how to find and read their history, attach and detach them."""
