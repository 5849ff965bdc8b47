"""Attach Scratchpad: the line `address = …` of `settings.txt` in its folder."""

from __future__ import annotations

import re
from pathlib import Path

from hypaware.clients.attach import AttachRecord, Environment, PreviousUpstream, SettingsEdit
from hypaware.clients.settings_file import Splice
from hypaware_scratchpad.history import find_folder

# The client's name, which is the first segment of the path, tells the gateway who is calling.
BASE = "/scratchpad/v1"
_ADDRESS = re.compile(r"^address = (.*)\n", re.MULTILINE)
_OURS = re.compile(rf"http://(?:127\.0\.0\.1|localhost|\[::1\]):\d+{re.escape(BASE)}")


class ScratchpadSettings:
    """Edits the text of the settings. Files are read and replaced by HypAware, which also keeps the previous text."""

    name = "scratchpad"

    def path(self, environment: Environment) -> Path:
        return find_folder(environment) / "settings.txt"

    def attach(self, text: str, gateway: str, environment: Environment) -> SettingsEdit:
        base_url, own = gateway + BASE, self.base_url(text)
        if own == base_url:
            return SettingsEdit((), base_url)
        found = _ADDRESS.search(text)
        line = f"address = {base_url}\n"
        edit = Splice(found.start(), found[0], line) if found else Splice(0, "", line)
        is_ours = own is None or _OURS.fullmatch(own)
        return SettingsEdit(
            (edit,),
            base_url,
            ours={"base_urls": [base_url]},
            before={"address": own},
            # The gateway forwards to the address that the user had chosen.
            upstreams=() if is_ours else (PreviousUpstream(BASE, str(own)),),
        )

    def detach(self, text: str, record: AttachRecord | None) -> str:
        if not _OURS.fullmatch(self.base_url(text) or ""):
            return text
        previous = record.before.get("address") if record else None
        return _ADDRESS.sub(f"address = {previous}\n" if previous else "", text, count=1)

    def explain_removal(self, text: str, environment: Environment) -> tuple[str, ...]:
        return ()

    def base_url(self, text: str) -> str | None:
        found = _ADDRESS.search(text)
        return found[1] if found else None


SETTINGS = ScratchpadSettings()
