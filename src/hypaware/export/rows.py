"""Read the rows to deliver, apply the privacy gate, encode them for a sink, and cut them into chunks.

Tables begin with the sequence (`_hyp_ingest_seq`), followed by the public columns, in sequence order. Every row passes
the privacy gate on its way to a sink. The gate leaves out the rows of folders and sessions that must stay on this
machine and replaces secrets in texts, as config, folders and opt-outs say at that moment. Chunks are cut by rows and
bytes, never across two incarnations. The ranges of a plan are contiguous.

@ref delivery#plan
@ref delivery#withheld
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from hypaware.errors import HypError
from hypaware.export.sink import Chunk, ChunkLimits, Payload, Sink, StreamCoverage
from hypaware.home.identity import Identity
from hypaware.lake.read import RowPage
from hypaware.model import datasets
from hypaware.model.datasets import SEQ, Dataset
from hypaware.privacy import policy
from hypaware.privacy.policy import PrivacyPolicy
from hypaware.privacy.redact import Redaction, load_marker_key, text_redactors
from hypaware.privacy.secret_rules import SECRET_HINT
from hypaware.privacy.withheld_sessions import list_session_folders
from hypaware.state.streams import PlannedChunk, StreamKey

if TYPE_CHECKING:
    from hypaware.config import Config
    from hypaware.home import Home

IsWithheld = Callable[[str | None, str | None], bool]
"""(cwd, session id) → whether their rows must stay on this machine."""
Redactor = Callable[[str], tuple[str, "Counter[str]"]]
"""Text → the text without secrets, and the number of replacements by each rule."""
_FOLDER, _SESSION = "cwd", "session_id"


class RowReader(Protocol):
    """Reads or counts the rows of a stream. A protocol, so that tests of delivery need no lake."""

    def page(self, dataset: str, source: str, after: int, until: int, most: int | None = None) -> RowPage:
        """Return the rows in (after, until], or with `most` the next rows, at most so many, but advance at least by one
        sequence. Runs on a worker thread."""
        ...

    def count(self, dataset: str, source: str, after: int, last: int) -> int: ...


@dataclass(frozen=True)
class GateReport:
    """The effect of the gate on a set of rows, by sequence, so that it can be cut like the rows."""

    withheld: tuple[int, ...] = ()
    secrets: Mapping[int, Counter[str]] = field(default_factory=dict)
    """Sequence → number of replacements by each rule; never the replaced text."""

    def slice(self, after: int, last: int) -> GateReport:
        return GateReport(
            tuple(seq for seq in self.withheld if after < seq <= last),
            {seq: counts for seq, counts in self.secrets.items() if after < seq <= last},
        )


@dataclass(frozen=True)
class PrivacyGate:
    is_withheld: IsWithheld
    redactors: Callable[[str], Mapping[str, Redactor]] = lambda _dataset: {}
    """Dataset → redactors of the columns that may hold secrets; empty if redaction is off for exports."""
    check_policy: Callable[[], object] = lambda: None
    """Raises HypError if the policy is unknown: then rows must be neither delivered nor skipped."""

    def filter_rows(self, dataset: str, table: pa.Table) -> tuple[pa.Table, GateReport]:
        """Return the rows that may leave now, without secrets. The table holds the sequence (`SEQ`)."""
        self.check_policy()
        withheld: tuple[int, ...] = ()
        verdicts = {pair: self.is_withheld(*pair) for pair in _distinct_pairs(table)}
        if any(verdicts.values()):
            pairs = zip(*(_text_column(table, name).to_pylist() for name in (_FOLDER, _SESSION)), strict=True)
            mask = pa.array([verdicts[pair] for pair in pairs])
            withheld = tuple(table.column(SEQ).filter(mask).to_pylist())
            table = table.filter(pc.invert(mask))
        table, matches = redact_table(table, self.redactors(dataset), SECRET_HINT)
        seqs = table.column(SEQ)
        return table, GateReport(withheld, {seqs[row].as_py(): counts for row, counts in sorted(matches.items())})

    def still_allowed(self, table: pa.Table) -> bool:
        """Return whether all these rows, which passed the gate before, may still leave."""
        self.check_policy()
        return not any(self.is_withheld(*pair) for pair in _distinct_pairs(table))

    def redact(self, dataset: str, table: pa.Table) -> pa.Table:
        """Return the rows without secrets, as they would leave this machine."""
        return redact_table(table, self.redactors(dataset), SECRET_HINT)[0]


def make_gate(home: Home, config: Config) -> PrivacyGate:
    privacy = PrivacyPolicy.from_config(home, config.privacy, remember=True)

    def is_withheld(cwd: str | None, session_id: str | None) -> bool:
        if privacy.is_withheld(cwd, session_id):
            return True
        # Telemetry names no folder. Its session is withheld if one of the folders in which it was is.
        folders = list_session_folders(home, session_id) if session_id and not cwd else ()
        return any(privacy.is_withheld(folder, session_id) for folder in folders)

    @cache
    def redactors(dataset: str) -> Mapping[str, Redactor]:
        if not config.redaction.exported:
            return {}
        redaction = Redaction(load_marker_key(home), frozenset(config.redaction.rules_off))
        columns = text_redactors(datasets.get(dataset))
        return {name: partial(redact, redaction=redaction) for name, redact in columns.items()}

    return PrivacyGate(is_withheld, redactors, partial(policy.check_privacy_files, home))


def _distinct_pairs(table: pa.Table) -> list[tuple[str | None, str | None]]:
    if not {_FOLDER, _SESSION} & set(table.column_names):
        return []
    pairs = pa.table({name: _text_column(table, name) for name in (_FOLDER, _SESSION)})
    distinct = pairs.group_by([_FOLDER, _SESSION]).aggregate([]).to_pylist()
    return [(pair[_FOLDER], pair[_SESSION]) for pair in distinct]


def _text_column(table: pa.Table, name: str) -> Any:
    return table[name] if name in table.column_names else pa.nulls(len(table), pa.string())


def redact_table(
    table: pa.Table, columns: Mapping[str, Redactor], hint: str
) -> tuple[pa.Table, dict[int, Counter[str]]]:
    """Redact the texts of these columns.

    `hint` is a regular expression that every text with a secret matches. Returns the table, and for each row that had
    a secret the number of replacements by each rule.
    """
    matches: dict[int, Counter[str]] = {}
    for name, suspects in _find_suspects(table, columns, hint).items():
        index = table.schema.get_field_index(name)
        column = table.column(index)
        chunks, start = [], 0
        for chunk in column.chunks:
            chunks.append(_redact_chunk(chunk, columns[name], suspects, start, matches))
            start += len(chunk)
        if any(new is not old for new, old in zip(chunks, column.chunks, strict=True)):
            table = table.set_column(index, table.schema.field(index), pa.chunked_array(chunks, column.type))
    return table, matches


def _find_suspects(table: pa.Table, columns: Iterable[str], hint: str) -> dict[str, Any]:
    """Return the distinct texts that match the hint, for each column that has any.

    All columns are searched in one call: to compile the expression takes as long as to search thousands of texts.
    """
    present = [name for name in columns if name in table.column_names and table[name].null_count < len(table)]
    distinct = [pc.unique(table[name]) for name in present]
    if not distinct:
        return {}
    # As bytes: an ASCII expression searches bytes faster than characters.
    as_bytes = pa.concat_arrays([texts.cast(pa.large_binary()) for texts in distinct])
    is_suspect = pc.fill_null(pc.match_substring_regex(as_bytes, hint), False)
    found, start = {}, 0
    for name, texts in zip(present, distinct, strict=True):
        of_column = is_suspect.slice(start, len(texts))
        start += len(texts)
        if of_column.true_count:
            found[name] = texts.filter(of_column)
    return found


def _redact_chunk(texts: Any, redact: Redactor, suspects: Any, start: int, matches: dict[int, Counter[str]]) -> Any:
    is_suspect = pc.is_in(texts, value_set=suspects)
    if not is_suspect.true_count:
        return texts
    rows = pc.indices_nonzero(is_suspect).to_pylist()
    found = texts.take(pa.array(rows, pa.int64())).to_pylist()
    # Many rows share a text: redact each text once.
    results = {text: redact(text) for text in dict.fromkeys(found)}
    changed = [False] * len(texts)
    values: list[str] = []
    for row, text in zip(rows, found, strict=True):
        new, counts = results[text]
        if counts:
            changed[row] = True
            values.append(new)
            matches.setdefault(start + row, Counter()).update(counts)
    return pc.replace_with_mask(texts, pa.array(changed), pa.array(values, texts.type)) if values else texts


@dataclass(frozen=True)
class PreparedRows:
    """The rows of (after, reached] that may leave this machine, with their sequences and their encoded form."""

    table: pa.Table
    payload: Payload
    after: int
    reached: int
    gate_report: GateReport

    @cached_property
    def seqs(self) -> Sequence[int]:
        seqs: list[int] = self.table.column(SEQ).to_pylist()
        return seqs

    def slice(self, after: int, last: int) -> PreparedRows:
        start, stop = bisect_right(self.seqs, after), bisect_right(self.seqs, last)
        rows, payload = self.table.slice(start, stop - start), self.payload.slice(start, stop)
        return PreparedRows(rows, payload, after, last, self.gate_report.slice(after, last))

    def row_keys(self, dataset: Dataset) -> list[str | None]:
        """Return the dedupe key of each row."""
        keys: list[str | None] = _text_column(self.table, dataset.key_column).to_pylist()
        if all(keys):
            return keys
        names = {dataset.key_column, *dataset.key_parts} & set(self.table.column_names)
        return [dataset.key_of(row) for row in self.table.select(sorted(names)).to_pylist()]


@dataclass(frozen=True)
class RowSource:
    """The rows of one stream as its sink receives them: gated and encoded."""

    lake: RowReader
    gate: PrivacyGate
    sink: Sink
    key: StreamKey

    def prepare(
        self, after: int, until: int, most: int | None = None, *, stored: pa.Table | None = None
    ) -> PreparedRows:
        """Read, gate and encode the rows in (after, until], or with `most` the next of them, at most so many. Blocks.

        `stored`: the rows of a dead letter, which are not read again.
        Raises HypError (`sink_failed`) if the sink cannot encode the rows: that cannot be cured by a retry.
        """
        rows, reached = stored, until
        if rows is None:
            page = self.lake.page(self.key.dataset, self.key.source, after, until, most)
            rows, reached = page.rows, page.reached
        table, gate_report = self.gate.filter_rows(self.key.dataset, rows)
        with self.failure_described("encode", len(table)):
            payload = self.sink.encode(table if self.sink.wants_sequence else table.drop_columns([SEQ]))
        return PreparedRows(table, payload, after, reached, gate_report)

    @contextmanager
    def failure_described(self, step: str, rows: int) -> Iterator[None]:
        """Turn an error of the sink in a step that needs no destination into a HypError: a retry cannot help."""
        try:
            yield
        except HypError:
            raise
        except Exception as error:
            problem = f"the sink {self.key.sink} could not {step} {rows} rows: {type(error).__name__}: {error}"
            raise HypError(problem, kind="sink_failed") from error


def make_chunk(
    stream: StreamKey, gateway_id: str, incarnation: str, after: int, last: int, keys: Sequence[object] = ()
) -> Chunk:
    """Return the chunk of a range. Its id depends on nothing that new rows, compaction or moves can change.

    With the `keys` of its rows, a home that was rolled back never gives other rows the same id.
    """
    parts = [gateway_id, incarnation, stream.sink, stream.dataset, stream.source, after, last, *keys]
    return Chunk(sha256(orjson.dumps(parts)).hexdigest()[:32], stream, gateway_id, incarnation, after, last)


def cut_chunks(
    key: StreamKey, identity: Identity, after: int, last: int, seqs: Sequence[int], payload: Payload,
    limits: ChunkLimits, row_keys: Sequence[object] = (),
) -> list[PlannedChunk]:  # fmt: skip
    """Return chunks that together cover (after, last] and hold the rows with the given sequences.

    A row larger than the limit gets a chunk of its own. `row_keys` become part of the ids.
    """
    incarnations = identity.incarnation_ranges()
    borders = [each.through for each in incarnations if each.through is not None]
    stops: list[int] = []
    start = weight = border = 0
    for index, size in enumerate(payload.sizes):
        crosses = False
        while border < len(borders) and seqs[index] > borders[border]:
            border, crosses = border + 1, True
        full = index - start >= limits.rows or weight + size > limits.bytes
        if index > start and (full or crosses):
            stops.append(index)
            start, weight = index, 0
        weight += size
    if len(seqs) > start:
        stops.append(len(seqs))
    chunks: list[PlannedChunk] = []
    start = 0
    for stop in stops:
        through = seqs[stop - 1] if stop < len(seqs) else last
        owner = next(each for each in incarnations if each.through is None or seqs[start] <= each.through)
        if owner.through is not None and through > owner.through:
            through = owner.through
        first = max(after, owner.after)
        chunk = make_chunk(key, identity.gateway_id, owner.incarnation, first, through, row_keys[start:stop])
        chunks.append(PlannedChunk(chunk.id, owner.incarnation, first, through, stop - start))
        after, start = through, stop
    return chunks


def halve_chunk(key: StreamKey, gateway_id: str, chunk: PlannedChunk, seqs: Sequence[int]) -> list[PlannedChunk]:
    """Split the chunk between its two middle rows."""
    middle = len(seqs) // 2
    border = seqs[middle - 1]
    return [
        _plan_part(key, gateway_id, chunk, chunk.after, border, middle),
        _plan_part(key, gateway_id, chunk, border, chunk.last, len(seqs) - middle),
    ]


def missing_chunks(
    key: StreamKey, gateway_id: str, chunk: PlannedChunk, seqs: Sequence[int], covered: StreamCoverage
) -> list[PlannedChunk]:
    """Return the parts of the chunk that the destination lacks: its holes, and everything above its last sequence."""
    ranges = [(max(after, chunk.after), min(last, chunk.last)) for after, last in covered.holes]
    ranges.append((max(covered.last, chunk.after), chunk.last))
    return [
        _plan_part(key, gateway_id, chunk, after, last, bisect_right(seqs, last) - bisect_right(seqs, after))
        for after, last in ranges
        if after < last
    ]


def _plan_part(key: StreamKey, gateway_id: str, of: PlannedChunk, after: int, last: int, rows: int) -> PlannedChunk:
    if (after, last) == (of.after, of.last):
        return of
    # The id of the whole stands for its rows.
    part = make_chunk(key, gateway_id, of.incarnation, after, last, (of.id,))
    return PlannedChunk(part.id, of.incarnation, after, last, rows)


def to_chunk(
    key: StreamKey, identity: Identity, planned: PlannedChunk, *, is_fresh: bool = False,
    inherited: Iterable[tuple[int, int]] = (),
) -> Chunk:  # fmt: skip
    """Return the planned chunk for the sink, under its recorded id even if the sink was renamed since.

    `inherited`: ranges of rows that another home may deliver as well.
    """
    is_shared = any(after < planned.last and planned.after < last for after, last in inherited)
    is_disputed = is_shared or identity.precedes(planned.incarnation, planned.after)
    origin = (planned.id, key, identity.gateway_id, planned.incarnation)
    return Chunk(*origin, planned.after, planned.last, is_fresh, is_disputed)
