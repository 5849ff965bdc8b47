"""Generate the parts of docs/ that follow from the code: commands, settings, columns, crash points, telemetry, tests.

A page holds them between `<!-- generated: name -->` and `<!-- end -->`; the rest of the page is written by hand.
`make docs` updates them, and a test fails if a page is out of date.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import click

from hypaware import faults, telemetry
from hypaware.cli.main import hyp
from hypaware.config.schema import SINK_COMMON, SINK_KINDS, ClientConfig, Config, Setting, UpstreamConfig
from hypaware.lake.schema import INTERNAL_COLUMNS
from hypaware.model import datasets
from hypaware.model.columns import Column
from scripts import hazard_marks

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_END = "<!-- end -->"


def pages() -> list[Path]:
    """Return every page with a generated part."""
    return [path for path in sorted(DOCS.rglob("*.md")) if _begin("") in path.read_text(encoding="utf-8")]


def render(path: Path) -> str:
    """Return the page's text with its generated parts up to date."""
    text = path.read_text(encoding="utf-8")
    for name, part in PARTS.items():
        before, begin, rest = text.partition(f"{_begin(name)} -->\n")
        if begin:
            old, end, after = rest.partition(_END)
            if not end:
                raise ValueError(f"{path}: the part {name} has no {_END}")
            text = f"{before}{begin}{part(old).strip()}\n{end}{after}"
    return text


def _begin(name: str) -> str:
    return f"<!-- generated: {name}"


def walk(group: click.Group, path: tuple[str, ...] = ("hyp",)) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from walk(command, (*path, name))


def commands(_old: str) -> str:
    return "\n\n".join(_command(" ".join(path), command) for path, command in walk(hyp))


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    heading = "##" if name.count(" ") == 1 else "###"
    lines = [f"{heading} `{name}`", "", " ".join((command.help or "").split())]
    if isinstance(command, click.Group) and not command.params:
        return "\n".join(lines)
    taken = [param.make_metavar(context) for param in command.params if isinstance(param, click.Argument)]
    examples: tuple[str, ...] = getattr(command, "examples", ())
    lines += ["", "```", " ".join((name, *taken)), "", *(f"$ {example}" for example in examples), "```", ""]
    options = [param for param in command.params if isinstance(param, click.Option)]
    return "\n".join([*lines, _table(("option", "meaning"), [_option(option, context) for option in options])])


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    shown = ", ".join((*option.opts, *option.secondary_opts))
    value = "" if option.is_flag else f" {option.make_metavar(context)}"
    return f"`{shown}{value}`", option.help or ""


def settings() -> Iterator[tuple[str, Setting]]:
    """Yield every dotted key of config.toml, with placeholders for names that a user chooses."""
    yield from _section("", Config())
    yield from _section("gateway.upstreams[].", UpstreamConfig)
    yield from _section("clients.<name>.", ClientConfig)
    for name, setting in SINK_COMMON.items():
        yield f"sinks.<name>.{name}", setting
    for kind, known in SINK_KINDS.items():
        for name, setting in known.options.items():
            yield f"sinks.<name>.{name} ({kind})", setting


def _section(prefix: str, section: Any) -> Iterator[tuple[str, Setting]]:
    for each in fields(section):
        inner = getattr(section, each.name, None)
        if setting := each.metadata.get("setting"):
            yield f"{prefix}{each.name}", setting
        elif is_dataclass(inner):
            yield from _section(f"{prefix}{each.name}.", inner)


def configuration(_old: str) -> str:
    rows = [(f"`{key}`", _default(setting), setting.kind.expected, setting.about) for key, setting in settings()]
    return _table(("key", "default", "value", "meaning"), rows)


def _default(setting: Setting) -> str:
    if setting.required:
        return "required"
    if setting.default is None:
        return "depends on the kind"
    return f"`{_toml(setting.kind.write(setting.default))}`"


def _toml(value: Any) -> str:
    if isinstance(value, bool | int):
        return str(value).lower()
    if isinstance(value, dict):
        return "{}"
    return "[" + ", ".join(map(_toml, value)) + "]" if isinstance(value, list) else f'"{value}"'


def columns(_old: str) -> str:
    shown = []
    for dataset in datasets.list_all():
        key = f"`{dataset.key_column}`"
        source = ", ".join(f"`{name}`" for name in dataset.source_columns)
        shown.append(
            f"## `{dataset.name}`\n\n{dataset.about} Time column `{dataset.time_column}`; dedupe key {key}; "
            f"source: the first of {source} that is not empty.\n\n{_columns(dataset.columns)}"
        )
    return "\n\n".join(shown)


def internal_columns(_old: str) -> str:
    return _columns(INTERNAL_COLUMNS)


def _columns(found: tuple[Column, ...]) -> str:
    rows = [
        (f"`{column.name}`", column.type.value, "always" if column.required else "", column.about) for column in found
    ]
    return _table(("column", "type", "set", "meaning"), rows)


def points(_old: str) -> str:
    return _table(("point", "when"), [(f"`{point.name}`", point.about) for point in faults.list_crash_points()])


def spans(_old: str) -> str:
    found = _first_arguments("span")
    return _table(("span", "recorded in"), [(f"`{name}`", ", ".join(modules)) for name, modules in found.items()])


def metrics(_old: str) -> str:
    kinds = {"counter": telemetry.Counter, "histogram": telemetry.Histogram, "gauge": telemetry.Gauge}
    used = {**_first_arguments("count"), **_first_arguments("record"), **_first_arguments("gauge")}
    rows = [
        (f"`{name}`", kind, ", ".join(used.get(name, ("not yet",))))
        for kind, names in kinds.items()
        for name in get_args(names)
    ]
    return _table(("metric", "kind", "recorded in"), rows)


def _first_arguments(function: str) -> dict[str, tuple[str, ...]]:
    """Return the first arguments of all `telemetry.<function>` calls, with their modules."""
    found: dict[str, set[str]] = {}
    for name, value, module in _telemetry_calls():
        if name == function:
            found.setdefault(value, set()).add(f"`{module}`")
    return {name: tuple(sorted(modules)) for name, modules in sorted(found.items())}


@cache
def _telemetry_calls() -> list[tuple[str, str, str]]:
    """Return (function, first argument, module) of every call of telemetry. Only files that name it are parsed."""
    source = ROOT / "src" / "hypaware"
    found = []
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "telemetry." in text else ():
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="telemetry"), attr=name),
                    args=[ast.Constant(value=str(value)), *_],
                ):
                    found.append((name, value, ".".join(path.relative_to(source).with_suffix("").parts)))
    return found


def hazards(old: str) -> str:
    """Return the table with its last column (the tests) filled from the marks."""
    marks = hazard_marks.collect(ROOT / "tests")
    return "\n".join(_hazard(line, marks) for line in old.strip().splitlines())


def _hazard(line: str, marks: dict[int, list[str]]) -> str:
    row = hazard_marks.Row.parse(line)
    return line if row is None else row.with_tests(marks.get(row.number, []))


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *(tuple(_cell(cell) for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


PARTS: dict[str, Callable[[str], str]] = {
    "commands": commands,
    "configuration": configuration,
    "columns": columns,
    "internal-columns": internal_columns,
    "crash-points": points,
    "spans": spans,
    "metrics": metrics,
    "hazards": hazards,
}


def main() -> int:
    for path in pages():
        text = render(path)
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
