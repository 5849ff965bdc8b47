"""`backup.json`: what a backup holds. A backup is a folder laid out as a home, with this file beside `state.db`.

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


def as_text(contents: Contents) -> bytes:
    return json.dumps({"version": VERSION, **asdict(contents)}, indent=1, ensure_ascii=False).encode()


def read(folder: Path) -> Contents:
    path = folder / NAME
    try:
        held = json.loads(path.read_bytes())
        if held["version"] != VERSION:
            raise HypError(
                f"{folder} was made by a newer version of hypaware (format {held['version']})",
                kind="backup_too_new",
                repair="pip install --upgrade hypaware",
            )
        files = {name: Kept(int(each["size"]), str(each["sha256"])) for name, each in held.pop("files").items()}
        del held["version"]
        found = Contents(**held, files=files)
    except (FileNotFoundError, NotADirectoryError):
        raise HypError(f"{folder} is no backup: it has no {NAME}", kind="not_a_backup") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HypError(f"{path} cannot be read: {error}", kind="backup_damaged") from error
    for name in found.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise HypError(f"{path} names {name}, which does not lie in the backup", kind="backup_damaged")
    return found
