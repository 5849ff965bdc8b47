"""Mutants of a module: copies of its source with one small mistake each.

A mistake is a comparison, an `and`, a `not`, an addition, a number or a truth value that is replaced by its neighbour,
a condition that is negated, or a statement that is left out. Code that only describes (docstrings, annotations,
messages of errors, telemetry), type checks and what is outside of functions are left alone: a test of them would repeat
them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}
_DESCRIPTIVE = frozenset(["telemetry", "span", "event", "metrics", "progress", "warnings", "cast"])
"""Names and attributes of calls that only say what happens."""


@dataclass(frozen=True)
class Mutant:
    line: int
    function: str
    old: str
    """The mutated piece of source, in one line."""
    new: str
    source: bytes

    @property
    def title(self) -> str:
        return f"{self.function}: {self.old} → {self.new}"


def make_mutants(source: bytes) -> list[Mutant]:
    """Return all mutants of a module, in the order of its lines."""
    tree = ast.parse(source)
    found = _Places(source)
    found.visit(tree)
    return sorted(found.mutants, key=lambda mutant: mutant.line)


def list_functions(source: bytes, path: str) -> dict[str, CodeType]:
    """Return the code of all functions of a module, by qualified name."""
    found: dict[str, CodeType] = {}
    pending = [compile(source, path, "exec", dont_inherit=True)]
    while pending:
        for code in pending.pop().co_consts:
            if isinstance(code, CodeType):
                found[code.co_qualname] = code
                pending.append(code)
    return found


class _Places(ast.NodeVisitor):
    """Walks over a module and collects its mutants."""

    def __init__(self, source: bytes) -> None:
        self.mutants: list[Mutant] = []
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._names: list[str] = []
        self._depth = 0
        """How many functions are around the node."""

    def visit(self, node: ast.AST) -> None:
        if _describes(node):
            return
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
                continue
            self._visit_field(node, value)
        self._mutate(node)

    def _visit_field(self, node: ast.AST, value: object) -> None:
        is_scope = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        self._depth += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_scope:
            self._names.append(node.name)  # type: ignore[attr-defined]
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                self.visit(each)
        self._depth -= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_scope:
            self._names.pop()

    def _mutate(self, node: ast.AST) -> None:
        match node:
            case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
                self._replace_between(node.left, node.comparators[0], *_COMPARISONS[type(op)])
            case ast.BoolOp(op=op):
                old, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                for left, right in zip(node.values, node.values[1:], strict=False):
                    self._replace_between(left, right, old, new)
            case ast.BinOp(op=op) if type(op) in _ARITHMETIC and not _is_text(node.left, node.right):
                self._replace_between(node.left, node.right, *_ARITHMETIC[type(op)])
            case ast.UnaryOp(op=ast.Not()):
                self._replace(node, self._text(node.operand))
            case ast.Constant(value=bool() as value):
                self._replace(node, str(not value))
            case ast.Constant(value=int() as value):
                self._replace(node, str(value + 1))
            case ast.If() | ast.While() | ast.IfExp():
                self._negate(node.test)
            case ast.comprehension():
                for test in node.ifs:
                    self._negate(test)
            case ast.Expr(value=ast.Call() | ast.YieldFrom() | ast.Yield()) | ast.AugAssign() | ast.Raise():
                self._replace(node, "pass")
            case ast.Continue() | ast.Break():
                self._replace(node, "pass")
            case ast.Return(value=ast.expr() as value) if not _is_plain(value):
                self._replace(value, "None")

    def _negate(self, test: ast.expr) -> None:
        # Comparisons and `not` are mutated on their own.
        if not isinstance(test, ast.Compare | ast.UnaryOp):
            self._replace(test, f"not ({self._text(test)})")

    def _replace_between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        start, stop = self._end(left), self._start(right)
        gap = self._source[start:stop].decode()
        place = gap.find(old)
        if place < 0:
            return
        mutated = gap[:place] + new + gap[place + len(old) :]
        before, after = self._text(left)[-30:], self._text(right)[:30]
        self._add(start, stop, mutated, right.lineno, f"{before} {old} {after}", f"{before} {new} {after}")

    def _replace(self, node: ast.expr | ast.stmt, new: str) -> None:
        self._add(self._start(node), self._end(node), new, node.lineno, self._text(node), new)

    def _add(self, start: int, stop: int, new: str, line: int, old_shown: str, new_shown: str) -> None:
        source = self._source[:start] + new.encode() + self._source[stop:]
        if not self._depth:
            return
        try:
            compile(source, "mutant", "exec")
        except SyntaxError:
            return
        self.mutants.append(Mutant(line, ".".join(self._names), _shorten(old_shown), _shorten(new_shown), source))

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> str:
        return self._source[self._start(node) : self._end(node)].decode()


def _describes(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assert():
            return True
        case ast.Call():
            return not _DESCRIPTIVE.isdisjoint(_names_of(node.func))
        case ast.Expr(value=ast.Call() as call):
            return not _DESCRIPTIVE.isdisjoint(_names_of(call.func))
        case ast.Import() | ast.ImportFrom() | ast.arguments():
            return True
    return False


def _names_of(function: ast.expr) -> Iterator[str]:
    while isinstance(function, ast.Attribute):
        yield function.attr
        function = function.value
    if isinstance(function, ast.Name):
        yield function.id


def _is_plain(value: ast.expr) -> bool:
    """Return whether a returned value has mutants of its own, or is None."""
    return isinstance(value, ast.Constant | ast.Compare | ast.BoolOp | ast.UnaryOp)


def _is_text(*values: ast.expr) -> bool:
    return any(isinstance(each, ast.JoinedStr | ast.Constant) and not _is_number(each) for each in values)


def _is_number(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float)


def _shorten(text: str) -> str:
    return " ".join(text.split())[:110]
