"""One import at a time, of what every job has a thread of its own to import.

A package that imports its own submodules, as PySpark does, must not be entered from two of its ends at once: Python
sees that the two threads would wait for each other for ever, and gives one of them half a module.
"""

from __future__ import annotations

import threading

# Whoever imports may be told to import more.
alone = threading.RLock()
