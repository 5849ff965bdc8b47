"""Set up HypAware on a machine. Another run adds missing parts and repairs broken ones.

The steps are, in this order: config, engine, import, daemon (which follows the transcripts), attach (only if the user
asked for it). If a step fails, the steps that do not depend on
it still run. A dry run takes the same steps without a trace on disk. Nothing in this package prints or asks.
"""
