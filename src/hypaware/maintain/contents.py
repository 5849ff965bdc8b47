"""`backup.json`, the manifest of a backup. A backup is a directory laid out like a home, with this file next to
`state.db`.

{version, made_at, hypaware, home, gateway_id, incarnation, next_seq, files: {path: {size, sha256}}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from hypaware.errors import HypError

NAME = "backup.json"
VERSION = 1


@dataclass(frozen=True)
class Kept:
    size: int
    sha256: str


@dataclass(frozen=True)
class Contents:
    made_at: str
    hypaware: str
    home: str
    gateway_id: str
    incarnation: str
    next_seq: int
    files: Mapping[str, Kept]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files.values())


def as_text(manifest: Contents) -> bytes:
    return json.dumps({"version": VERSION, **asdict(manifest)}, indent=1, ensure_ascii=False).encode()


def read(folder: Path) -> Contents:
    """Read the manifest of the backup in `folder`; raise HypError if it is missing, damaged or too new."""
    path = folder / NAME
    try:
        document = json.loads(path.read_bytes())
        if document["version"] != VERSION:
            raise HypError(
                f"the backup {folder} was made by a newer version of hypaware (format {document['version']})",
                kind="backup_too_new",
                repair="pip install --upgrade hypaware",
            )
        files = {name: Kept(int(entry["size"]), str(entry["sha256"])) for name, entry in document.pop("files").items()}
        del document["version"]
        manifest = Contents(**document, files=files)
    except (FileNotFoundError, NotADirectoryError):
        raise HypError(f"{folder} is not a backup: {NAME} is missing", kind="not_a_backup") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HypError(f"cannot read {path}: {error}", kind="backup_damaged") from error
    for name in manifest.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise HypError(f"{path} lists {name}, which is outside the backup", kind="backup_damaged")
    return manifest
