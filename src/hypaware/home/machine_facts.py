"""What a task must know about the machine of its home: the repository of a folder, its privacy, a client's notes.

Next to the home, `look_up` simply calls the function. A task of a cluster runs on another machine, where the answer
would be silently wrong: no folder has a `.hypignore` there. It therefore knows only the answers that it was given.
Every other question is recorded, the task continues with a default, and its result is discarded: the driver answers the
questions and runs the task again. So ask about things that many rows share, such as a folder, never about a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
Question = tuple[str, Hashable]
"""The name of a function, and its arguments or their representation."""


@dataclass
class MachineFacts:
    answers: Mapping[Question, Any]
    questions: dict[Question, Callable[[], Any]] = field(default_factory=dict)
    """Questions without an answer, and the calls that answer them on the machine of the home."""


class Unanswered(Exception):
    """A task cannot finish before these questions are answered."""

    def __init__(self, questions: Mapping[Question, Callable[[], Any]]) -> None:
        super().__init__(f"{len(questions)} questions about the machine of the home")
        self.questions = dict(questions)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.questions,)


# A worker runs one task at a time.
_remote: MachineFacts | None = None


def look_up(function: Callable[..., T], *arguments: Any, default: T, key: Hashable = None) -> T:
    """Return what the function returns on the machine of the home.

    `function` and `arguments` can be pickled. `key` replaces arguments that cannot be hashed.
    """
    if _remote is None:
        return function(*arguments)
    question = (f"{function.__module__}.{function.__qualname__}", arguments if key is None else key)
    if question in _remote.answers:
        found: T = _remote.answers[question]
        return found
    _remote.questions[question] = partial(function, *arguments)
    return default


def is_remote() -> bool:
    """Return whether this is a task on another machine than that of the home."""
    return _remote is not None


def has_questions() -> bool:
    """Return whether the result of this task will be discarded, so that it need not write rows."""
    return _remote is not None and bool(_remote.questions)


@contextmanager
def only_known(answers: Mapping[Question, Any]) -> Iterator[None]:
    """Answer `look_up` only from `answers` within this context. Raise Unanswered at its end if that was not enough."""
    global _remote
    _remote = facts = MachineFacts(answers)
    try:
        yield
        if facts.questions:
            raise Unanswered(facts.questions)
    finally:
        _remote = None
