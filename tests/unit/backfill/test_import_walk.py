"""Random histories of one transcript: it grows, pauses, is copied, and is imported under changing windows.

After any such history, a last import of the quiet file without a window leaves every part and every token exactly once,
and nothing is due afterwards.
"""

from __future__ import annotations

import os
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from hypaware.home import Home
from tests.support import claude_files
from tests.support.claude_files import turns
from tests.support.light_home import DATASET, import_history
from tests.support.light_lake import read_lake

_WALKS = 25 * int(os.environ["HYP_SOAK"]) if "HYP_SOAK" in os.environ else 12


def _history(chance: random.Random) -> list[dict[str, Any]]:
    """Return turns of one to three lines with growing counts, over several days."""
    lines: list[dict[str, Any]] = []
    for turn in range(chance.randint(1, 6)):
        start = claude_files.START + timedelta(hours=chance.randint(5, 20) * turn)
        made = list(turns("s", 1, first=turn, lines=chance.randint(1, 3), start=start))
        for place, line in enumerate(made[1:], 1):
            line["message"]["usage"]["output_tokens"] = 10 * place
        lines += made
    return lines


def _window(chance: random.Random, lines: list[dict[str, Any]]) -> dict[str, str]:
    times = [line["timestamp"].replace("000Z", "500000Z") for line in lines]
    kinds = chance.choice([(), (), ("since",), ("until",), ("since", "until")])
    bounds = sorted(chance.choices(times, k=len(kinds)))
    return dict(zip(kinds, bounds, strict=True))


def _true_tokens(lines: list[dict[str, Any]]) -> int:
    last = {
        line["message"]["id"]: line["message"]["usage"]["output_tokens"] for line in lines if "id" in line["message"]
    }
    return sum(last.values())


@pytest.mark.hazard(50)
@pytest.mark.hazard(52)
@pytest.mark.hazard(96)
@pytest.mark.parametrize("seed", range(_WALKS))
def test_every_part_and_token_is_imported_once_in_any_sequence_of_steps(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    home = Home(tmp_path / "home")
    path = tmp_path / "claude" / "projects" / "-p" / "s.jsonl"
    environment = {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}
    path.parent.mkdir(parents=True)
    lines = _history(chance)
    data = [orjson.dumps(line) + b"\n" for line in lines]
    shown = 0
    for _ in range(chance.randint(1, 6)):
        shown = min(len(lines), shown + chance.randint(0, 4))
        cut = chance.choice([b"", b"", data[shown][:20] if shown < len(data) else b""])
        if chance.random() < 0.2:
            path.unlink(missing_ok=True)
        path.write_bytes(b"".join(data[:shown]) + cut)
        claude_files.aged(path, chance.choice([0, 0, 5000]) + 60 * (len(lines) - shown))
        import_history(home, environment, **_window(chance, lines))
    path.write_bytes(b"".join(data))
    claude_files.aged(path, claude_files.LONG_AGO)
    import_history(home, environment)

    rows = read_lake(home, DATASET)
    assert sorted(row["part_id"] for row in rows) == sorted(f"{line['uuid']}#0" for line in lines)
    usages = [orjson.loads(row["attributes"]).get("usage") or {} for row in rows]
    assert sum(usage.get("output_tokens", 0) for usage in usages) == _true_tokens(lines)
    assert import_history(home, environment).files_unchanged == 1
