"""Mutation testing of the modules that keep the promises: `python -m tests.mutation [MODULE …]`.

    python -m tests.mutation lake.dedupe state.ledger [--every 5] [--seconds 60] [--again]

Each mutant of a module (`tests.mutation.mutants`) is a small mistake, which some test must notice. The unit tests of
the module run once to find out which of them execute which line. Then, for each mutant, those that execute its line run
until one fails, in a copy of the tree (`tests.mutation.server`). A mutant that no test notices is a
survivor; so is one whose line no test executes. `explained.json` says of some why they do no harm or which slower test
notices them; the others are printed.

A mutant whose tests do not end counts as noticed. The results go to `.mutation/<module>.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / ".mutation"
EXPLAINED = Path(__file__).with_name("explained.json")
TARGETS: Mapping[Sequence[str], Sequence[str]] = {
    ("lake.dedupe", "lake.flush", "lake.commit"): ("tests/unit/lake",),
    ("export.rows",): tuple(f"tests/unit/export/test_{name}.py" for name in ("chunks", "watermarks", "privacy_gate")),
    ("export.round",): (
        *("tests/unit/export/test_delivery_edge_cases.py", "tests/unit/export/test_adopt_and_resend.py"),
        *("tests/unit/export/test_privacy_of_deliveries.py", "tests/unit/export/test_export_status.py"),
    ),
    ("state.ledger",): (
        *("tests/unit/state/test_ledger.py", "tests/unit/state/test_received.py", "tests/unit/state/test_gateways.py"),
        *("tests/unit/server/test_server_batches.py", "tests/unit/server/test_server_ranges.py"),
    ),
    ("maintain.purge.selector",): ("tests/unit/maintain/test_purge_selector.py",),
    ("maintain.purge.run", "maintain.purge.table", "maintain.purge.verify"): (
        *("tests/unit/maintain/test_purge.py", "tests/unit/maintain/test_purge_killed.py"),
        *("tests/unit/maintain/test_purge_raw_exchanges.py", "tests/unit/maintain/test_purge_byte_search.py"),
        "tests/unit/maintain/test_damaged_neighbour.py",
    ),
}
"""Modules → the tests that must notice their mutants."""
_COPIED = ("src", "tests", "docs", "bench", "scripts", "examples", "demo", "pyproject.toml", "README.md", "Makefile")
SURVIVED = ("survived", "not executed")
Found = dict[str, Any]


def copy_tree(folder: Path) -> None:
    for name in _COPIED:
        if (path := ROOT / name).is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(path, folder / name)


def run_mutants(modules: Sequence[str], tests: Sequence[str], options: argparse.Namespace) -> list[Found]:
    """Try the mutants of some modules that share their tests. Raise SystemExit if a test fails without a mutant."""
    results, trace = RESULTS / f"{modules[0]}.jsonl", RESULTS / f"{modules[0]}.trace"
    earlier = [json.loads(line) for line in results.read_text().splitlines()] if options.again else []
    if not (options.again or options.same_trace):
        trace.unlink(missing_ok=True)
    results.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="hyp-mutation-") as temporary:
        folder, files = Path(temporary, "tree"), Path(temporary, "files")
        files.mkdir()
        folder.mkdir()
        copy_tree(folder)
        again = [each["mutant"] for each in earlier if each["outcome"] in SURVIVED] if options.again else None
        facts = {"modules": modules, "every": options.every, "seconds": options.seconds, "again": again}
        plan = files / "plan"
        plan.write_text(json.dumps({**facts, "trace": str(trace), "results": str(results)}))
        environment = {
            **os.environ,
            "PYTHONPATH": f"{folder / 'src'}:{folder}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(files),
            "HYP_MUTATION_PLAN": str(plan),
        }
        # PostgreSQL cannot use the folder for temporary files, and its tests are slow.
        arguments = ("-q", "-k", "not postgres", "-p", "tests.mutation.server", "-p", "no:cacheprovider", "--tb=no")
        command = [sys.executable, "-m", "pytest", *arguments, *tests]
        with open(files / "output", "wb") as output:
            done = subprocess.run(command, env=environment, cwd=folder, stdout=output, stderr=output, check=False)
        if done.returncode not in (0, 5) or not results.exists():
            raise SystemExit((files / "output").read_text(errors="replace")[-3000:])
    tried = [json.loads(line) for line in results.read_text().splitlines()]
    places = {(each["module"], each["mutant"], each["line"]) for each in tried}
    kept = [each for each in earlier if (each["module"], each["mutant"], each["line"]) not in places]
    results.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in [*kept, *tried]))
    return [*kept, *tried]


def load_explained() -> dict[str, dict[str, str]]:
    """Return module → title of a mutant → why it does no harm."""
    found: dict[str, dict[str, str]] = json.loads(EXPLAINED.read_text()) if EXPLAINED.exists() else {}
    return found


def report(module: str, found: Sequence[Found]) -> int:
    """Store and print the results of a module. Return the number of survivors without an explanation."""
    counts = Counter(each["outcome"] for each in found)
    survivors = [each for each in found if each["outcome"] in SURVIVED]
    explained = load_explained().get(module, {})
    unexplained = [each for each in survivors if each["mutant"] not in explained]
    stored = {"counts": counts, "survivors": survivors}
    (RESULTS / f"{module}.json").write_text(json.dumps(stored, indent=2, ensure_ascii=False) + "\n")
    print(f"{module}: {dict(counts)}; {len(unexplained)} survivors without an explanation", flush=True)
    for each in unexplained:
        ran = f"{each['tests']} of {each['all_tests']} tests"
        print(f"  line {each['line']}: {each['mutant']} ({each['outcome']}, {ran})", flush=True)
    return len(unexplained)


def main() -> int:
    known = [module for modules in TARGETS for module in modules]
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Finds mistakes no test notices.")
    parser.add_argument("modules", nargs="*", default=known, metavar="MODULE", help=", ".join(known))
    parser.add_argument("--every", type=int, default=1, help="try one of so many mutants")
    parser.add_argument("--seconds", type=float, default=30.0, help="the longest time of a mutant's tests")
    parser.add_argument("--same-trace", action="store_true", help="reuse which tests execute which lines")
    parser.add_argument("--again", action="store_true", help="try only the survivors of the last run")
    args = parser.parse_args()
    if unknown := set(args.modules) - set(known):
        parser.error(f"unknown module {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    RESULTS.mkdir(exist_ok=True)
    survivors = 0
    for modules, tests in TARGETS.items():
        if chosen := [module for module in modules if module in args.modules]:
            found = run_mutants(chosen, tests, args)
            for module in chosen:
                survivors += report(module, [each for each in found if each["module"] == module])
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
