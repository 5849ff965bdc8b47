"""`hyp search` over sessions of the real clients: it finds what SQL over the lake finds."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

from hypaware import open_lake
from tests.support import claude_files, claude_transcripts, codex_rollouts
from tests.support.command import Hyp

COLUMNS = "part_id, role, coalesce(content_text, '') AS text, coalesce(tool_args, '') AS args"
_ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}|.)")


def test_every_word_is_found_in_the_parts_in_which_sql_finds_it(hyp: Hyp, tmp_path: Path) -> None:
    claude, codex = tmp_path / "claude", tmp_path / "codex"
    claude_transcripts.unpacked(claude / "projects")
    rollouts = codex / "sessions" / "2026" / "11" / "15"
    rollouts.mkdir(parents=True)
    for name in codex_rollouts.sample_names():
        (rollouts / name).write_bytes(codex_rollouts.sample(name))
        claude_files.aged(rollouts / name, claude_files.LONG_AGO)
    where = {"CLAUDE_CONFIG_DIR": str(claude), "CODEX_HOME": str(codex)}
    hyp.ok("backfill", **where)
    rows = hyp.query(f"SELECT {COLUMNS} FROM ai_gateway_messages")
    words = {row["part_id"]: split(f"{row['text']}\n{_ESCAPE.sub(' ', row['args'])}") for row in rows}
    parts_of = Counter(word for found in words.values() for word in set(found))
    by_frequency = sorted(parts_of, key=lambda word: (-parts_of[word], word))
    chosen = [*by_frequency[:15], *random.Random(7).sample(by_frequency, 40)]
    assert len(rows) > 250

    lake = open_lake(hyp.home)
    for word in chosen:
        expected = {part for part, found in words.items() if word in found}
        assert {hit["part_id"] for hit in lake.search(word, limit=None)["hits"]} == expected, word
        users = {row["part_id"] for row in rows if row["role"] == "user"}
        assert lake.search(word, role="user")["total"] == len(expected & users), word
        beginning = word[:3]
        begun = sum(any(each.startswith(beginning) for each in found) for found in words.values())
        assert lake.search(f"{beginning}*")["total"] == begun, beginning
    for found in random.Random(8).sample([found for found in words.values() if len(found) > 5], 20):
        first, second = found[2:4]
        pairs = sum((first, second) in pairwise(each) for each in words.values())
        assert lake.search(f'"{first} {second}"')["total"] == pairs, (first, second)


def split(text: str) -> list[str]:
    return [word for word in re.findall(r"[^\W_]+", text.lower()) if word]
