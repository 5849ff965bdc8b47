"""The sink contract for folders that can and cannot be queried."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypaware.testing.contract import SinkContract
from hypaware.testing.folder_sink import FOLDER, FolderDestination


class TestFolder(SinkContract):
    kind = FOLDER

    def options(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"folder": str(tmp_path / "there"), "can_be_queried": self.can_be_queried}

    def other_options(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"folder": str(tmp_path / "elsewhere"), "can_be_queried": self.can_be_queried}

    def arrived(self, tmp_path: Path, options: Mapping[str, Any]) -> list[str]:
        return FolderDestination(Path(options["folder"])).arrived()


class TestFolderThatCannotBeAsked(TestFolder):
    can_be_queried = False
