"""A lock for imports, because each job imports modules in its own thread.

A package that imports its own submodules, as PySpark does, must not be imported by two threads at once. Python detects
the deadlock and gives one of them a partially initialized module.
"""

from __future__ import annotations

import threading

# Reentrant, because an import can trigger further imports.
alone = threading.RLock()
