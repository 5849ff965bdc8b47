"""Recorded clients, one package each: where their history lies and how it reads. Knows no spool and no lake."""
