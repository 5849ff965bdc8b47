"""What the page's process takes of the machine: its memory, and the priority of what it starts."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

_PRINT_NICENESS = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
_START = f"""
import subprocess, sys, threading
from hypaware.page import resources
command = [sys.executable, "-c", {_PRINT_NICENESS!r}]

def ask(start):
    process = start(command, stdout=subprocess.PIPE)
    return int(process.communicate()[0])

resources.lower_priority()
found = [ask(subprocess.Popen), ask(resources.start_process)]
# A request is answered in a thread that was started later.
thread = threading.Thread(target=lambda: found.append(ask(resources.start_process)))
thread.start()
thread.join()
print(*found)
"""
_ALLOCATE = """
import ctypes, os, sys, threading
from hypaware.page import resources

library = ctypes.CDLL(None)
library.fdopen.restype = ctypes.c_void_p
if sys.argv[1] == "limited":
    resources.limit_arenas()
barrier = threading.Barrier(8)

def allocate():
    barrier.wait()
    kept = bytearray(20_000)
    barrier.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
library.malloc_info(0, ctypes.c_void_p(library.fdopen(os.dup(1), b"w")))
library.fflush(None)
"""


def run(code: str, *arguments: str, **changes: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"} | changes
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process has one priority")
def test_what_a_person_starts_from_the_page_has_the_priority_that_the_page_began_with() -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    lowered, *started = map(int, run(_START).split())

    assert lowered == min(19, mine + 10)
    assert started == [mine, mine]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only the GNU C library has arenas")
def test_the_threads_of_the_page_share_the_memory_of_the_c_library() -> None:
    assert run(_ALLOCATE, "unlimited").count("<heap nr=") > 2
    assert run(_ALLOCATE, "limited").count("<heap nr=") <= 2


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only the GNU C library has arenas")
def test_a_number_of_arenas_in_the_environment_is_kept() -> None:
    assert run(_ALLOCATE, "limited", MALLOC_ARENA_MAX="6").count("<heap nr=") > 2
