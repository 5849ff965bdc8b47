"""Recorded text in lines that fit a terminal: escaped, and broken between words or cut with a mark.

All of it takes linear time, whatever the text. The table of wide characters is loaded when a text needs it.
"""

from __future__ import annotations

from hypaware.text import escape


def escape_block(text: str) -> str:
    """Escape a block of text. Line ends of Windows become plain ones."""
    return escape(text.replace("\r\n", "\n"))


def wrap_text(text: str, width: int | None) -> list[str]:
    """Break lines that are wider than `width`; words that are wider are broken too. None breaks nothing."""
    lines = text.expandtabs(4).split("\n")
    if width is None:
        return lines
    wrapped: list[str] = []
    for line in lines:
        wrapped += [line] if _fits(line, width) else _break_line(line, max(1, width))
    return wrapped


def cut_line(line: str, width: int | None, mark: str) -> str:
    """Cut a line that is wider than `width`, and end it with the mark."""
    if width is None or _fits(line, width):
        return line
    head = line[:width]
    room = max(0, width - len(mark))
    if not head.isascii():
        from rich.cells import set_cell_size

        head = set_cell_size(head, room)
    return head[:room].rstrip() + mark


def _fits(line: str, width: int) -> bool:
    # No character is wider than two cells, and a longer line is not measured.
    if line.isascii():
        return len(line) <= width
    return len(line) <= 4 * width and _measure(line) <= width


def _measure(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _break_line(line: str, width: int) -> list[str]:
    indent = line[: min(len(line) - len(line.lstrip(" ")), width // 2)]
    lines: list[str] = []
    start = 0
    while start < len(line):
        prefix = indent if start else ""
        end = _find_end(line, start, width - len(prefix))
        if end < len(line):
            space = line.rfind(" ", start + len(indent) * (not start) + 1, end + 1)
            end = space if space > 0 else end
        lines.append(prefix + line[start:end].rstrip())
        start = end
        while start < len(line) and line[start] == " ":
            start += 1
    return lines


def _find_end(line: str, start: int, width: int) -> int:
    """Return the end of the longest part of the line from `start` that fits."""
    end = min(len(line), start + width)
    part = line[start:end]
    if part.isascii():
        return end
    while end > start + 1 and (excess := _measure(line[start:end]) - width) > 0:
        end -= max(1, excess // 2)
    return max(end, start + 1)
