"""The lake: Iceberg tables, and the one way into them.

`flush` is that way: recover · reserve · build · commit · secure · record · remove. What runs it (Spark, or a light
stand-in in tests) stands behind the protocols of `committer`.
"""
