"""The table itself, without the engine of HypAware: any Iceberg reader can do this."""

import os
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog

home = Path(os.environ.get("HYP_HOME") or "~/.hyp").expanduser()

# Only read: `hyp` alone writes to the tables. Rows that are still in the spool are not here; `hyp flush` commits them.
catalog = SqlCatalog("hyp", uri=f"sqlite:///{home}/lake/catalog.db")
table = catalog.load_table("hypaware.ai_gateway_messages")
found = table.scan(selected_fields=("session_id", "client_name")).to_arrow()
print(found.group_by("client_name").aggregate([("session_id", "count_distinct")]).to_pylist())
print(len(found["session_id"].unique()), "sessions")
