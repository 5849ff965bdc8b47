"""The language of a file that a tool has read, from its name, as highlighters call it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_READERS = frozenset({"Read", "read_file", "NotebookRead"})
_PATHS = ("file_path", "path", "notebook_path")
_LANGUAGES = {
    **{"bash": "bash", "sh": "bash", "zsh": "bash", "c": "c", "h": "c", "cpp": "cpp", "cc": "cpp", "hpp": "cpp"},
    **{"cs": "csharp", "css": "css", "diff": "diff", "patch": "diff", "go": "go", "graphql": "graphql", "ini": "ini"},
    **{"toml": "ini", "cfg": "ini", "java": "java", "js": "javascript", "mjs": "javascript", "jsx": "javascript"},
    **{
        "json": "json",
        "jsonl": "json",
        "ipynb": "json",
        "kt": "kotlin",
        "less": "less",
        "lua": "lua",
        "mk": "makefile",
    },
    **{"makefile": "makefile", "md": "markdown", "m": "objectivec", "pl": "perl", "php": "php", "py": "python"},
    **{"pyi": "python", "r": "r", "rb": "ruby", "rs": "rust", "scss": "scss", "sql": "sql", "swift": "swift"},
    **{"ts": "typescript", "tsx": "typescript", "vb": "vbnet", "wat": "wasm", "html": "xml", "svg": "xml"},
    **{"xml": "xml", "yml": "yaml", "yaml": "yaml"},
}


def language_of(part: Mapping[str, Any]) -> str | None:
    """Return the language of what a tool call reads, or None if it reads no file or one of another language."""
    args = part["tool_args"]
    if part["tool_name"] not in _READERS or not isinstance(args, Mapping):
        return None
    path = next((args[name] for name in _PATHS if isinstance(args.get(name), str)), "")
    return _LANGUAGES.get(path.rpartition("/")[2].rpartition(".")[2].lower())
