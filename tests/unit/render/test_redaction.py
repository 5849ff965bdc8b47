"""A redacted conversation has no secrets in texts, arguments and titles, and stays readable."""

from __future__ import annotations

import json
from collections import Counter

from hypaware.privacy.redact import Redaction
from hypaware.render.redaction import redact_conversation
from tests.support.conversations import answered, called, conversation, typed

SECRET = "ghp_" + "a1B2" * 9
REDACTION = Redaction(b"k" * 32)


def test_secrets_are_replaced_everywhere_and_counted() -> None:
    found = conversation(
        typed(0, f"Use {SECRET} please"),
        called(
            1,
            "a",
            "Bash",
            {"command": f"curl -H 'Authorization: token {SECRET}'", "env": {"PASSWORD": "hunter2hunter2"}},
        ),
        answered(2, "a", f"token={SECRET}"),
        title=f"Use {SECRET} please",
    )
    counts: Counter[str] = Counter()

    redacted = redact_conversation(found, REDACTION, counts)
    text = json.dumps(redacted.as_document())

    assert SECRET not in text
    assert "hunter2hunter2" not in text
    assert "Use [" in text
    assert counts.total() >= 4
    assert [each["message_id"] for each in redacted] == [each["message_id"] for each in found]


def test_a_conversation_without_secrets_is_the_same() -> None:
    found = conversation(typed(0, "Fix the cart"), called(1, "a", "Bash", {"command": "make"}), answered(2, "a", None))

    assert list(redact_conversation(found, REDACTION, Counter())) == list(found)
