"""Set-up: from nothing to a recorded, searchable history; run again, it repairs and adds.

`choices` is what was asked for, `finding` what there is on this machine, `configuring` the config that follows from
both. `doing` has the steps, in the order config, engine, import, daemon, attach; `foretelling` has the same steps for a
dry run, which leaves no trace. `run` takes them one after the other: a step that fails is told with its repair, and
those that do not need it still run. Nothing here prints or asks.
"""
