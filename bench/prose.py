"""Random text that compresses like real text: sentences and lines of code, drawn from a few thousand words.

Pieces are already JSON-escaped, so that lines can be assembled without escaping.
"""

from __future__ import annotations

from random import Random

_PIECES = 60_000
_SYLLABLES = [consonant + vowel for consonant in "bcdfghklmnprstvwz" for vowel in "aeiou"]
_MARKS = (". ", ". ", ". ", ".\\n", ": ", "; ", ", and ", " — ", " → ", "!\\n\\n", "? ")
_SHAPES = (
    '    return {0}({1}, {2}=\\"{3}\\")\\n',
    "def {0}_{1}({2}: str, {3}: int = {n}) -> None:\\n",
    "        if {0}.{1} is not None and {2} > {n}:\\n",
    '        raise ValueError(f\\"{0} {1} {{{2}}}: {3}\\")\\n',
    "    {0} = [{1}.{2} for {1} in {3} if {1}]\\n",
    "import {0}_{1}\\n",
    "    # {0} {1} {2} {3}\\n",
    '  \\"{0}\\": {{\\"{1}\\": {n}, \\"{2}\\": \\"{3}\\"}},\\n',
    "src/{0}/{1}.py:{n}: {2} {3}\\n",
    "+    assert {0}({1}) == {n}  # {2}\\n",
)


class Prose:
    """The same seed gives the same texts."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.words = _words(rng, 3_000)
        # A few words make up most of a text, as in any language.
        self._often = [1 / (rank + 8) for rank in range(len(self.words))]
        self._sentences = self._make_sentences()
        self._code = self._make_code()

    def sentences(self, count: int) -> str:
        start = self._rng.getrandbits(20) % (_PIECES - count)
        return "".join(self._sentences[start : start + count])

    def code(self, count: int) -> str:
        start = self._rng.getrandbits(20) % (_PIECES - count)
        return "".join(self._code[start : start + count])

    def _draw(self, count: int) -> list[str]:
        return self._rng.choices(self.words, self._often, k=count)

    def _make_sentences(self) -> list[str]:
        words, lengths = iter(self._draw(12 * _PIECES)), self._rng.choices(range(4, 13), k=_PIECES)
        marks = self._rng.choices(_MARKS, k=_PIECES)
        return [
            " ".join(next(words) for _ in range(length)).capitalize() + mark
            for length, mark in zip(lengths, marks, strict=True)
        ]

    def _make_code(self) -> list[str]:
        words, shapes = iter(self._draw(4 * _PIECES)), self._rng.choices(_SHAPES, k=_PIECES)
        numbers = self._rng.choices(range(500), k=_PIECES)
        return [
            shape.format(next(words), next(words), next(words), next(words), n=number)
            for shape, number in zip(shapes, numbers, strict=True)
        ]


def _words(rng: Random, count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4)))] = None
    return list(found)
