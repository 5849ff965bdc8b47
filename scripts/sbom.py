"""The software bill of materials: what a HypAware installation with all extras consists of, as CycloneDX 1.6 JSON.

Which packages HypAware needs comes from the metadata of what is installed here, their versions and hashes from
`requirements.lock`, and the jars from `jars.lock.toml`. Packages of the extras are optional, all others required. The
same commit gives the same bytes: the time is the commit's, and the serial number is derived from the content.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hypaware.engine import jars

ROOT = Path(__file__).resolve().parents[1]
NAME = "hypaware"
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^ ;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def write(version: str, epoch: int, requirements: list[str], lock: Path = ROOT / "requirements.lock") -> str:
    """Return the document for a version that needs these requirements (`Requires-Dist` of the wheel)."""
    pinned = read_lock(lock)
    required = closure(requirements, extras=False)
    everything = closure(requirements, extras=True)
    components = [
        _package(name, *pinned[name], scope="required" if name in required else "optional")
        for name in sorted(everything)
        if name in pinned
    ]
    if unlocked := sorted(everything - pinned.keys()):
        raise ValueError(f"not in {lock.name}: {', '.join(unlocked)}; run: make lock")
    components += [_jar(jar) for jar in jars.locked_jars()]
    main_ref = f"pkg:pypi/{NAME}@{quote(version)}"
    graph = [
        {"ref": main_ref, "dependsOn": sorted(each["bom-ref"] for each in components)},
        *({"ref": each["bom-ref"]} for each in components),
    ]
    body = {
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z"),
            "component": {
                "type": "application",
                "bom-ref": main_ref,
                "name": NAME,
                "version": version,
                "purl": main_ref,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": components,
        "dependencies": graph,
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1}
    return json.dumps({**head, **body}, indent=1) + "\n"


def read_lock(path: Path) -> dict[str, tuple[str, list[str]]]:
    """Return the version and the hashes of each package in the lock file."""
    found: dict[str, tuple[str, list[str]]] = {}
    name = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if pin := _PINNED.match(line):
            name = canonicalize_name(pin[1])
            found[name] = (pin[2], [])
        if name:
            found[name][1].extend(_HASH.findall(line))
    return found


def closure(requirements: list[str], *, extras: bool) -> set[str]:
    """Return the names of all packages that the requirements lead to on this system."""
    wanted = [""]
    if extras:
        wanted += sorted({name for text in requirements for name in re.findall(r'extra == [\'"]([^\'"]+)', text)})
    found: set[str] = set()
    pending = list(_applicable(requirements, wanted))
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if name == NAME or name in found:
            continue
        found.add(name)
        inner = metadata.requires(name) or []
        pending += _applicable(inner, ["", *sorted(requirement.extras)])
    return found


def _applicable(requirements: list[str], extras: list[str]) -> Iterator[Requirement]:
    for text in requirements:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement


def _package(name: str, version: str, hashes: list[str], *, scope: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    # A release has one file per platform; each hash belongs to one of them.
    files = [{"type": "distribution", "url": f"{purl}#sha256={each}", **_sha256(each)} for each in sorted(hashes)]
    component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "scope": scope, "purl": purl}
    return {**component, "externalReferences": files}


def _jar(jar: jars.Jar) -> dict[str, Any]:
    purl = f"pkg:maven/{jar.organisation}/{jar.name}@{jar.version}"
    names = {"group": jar.organisation, "name": jar.name, "version": jar.version}
    return {"type": "library", "bom-ref": purl, **names, "scope": "required", "purl": purl, **_sha256(jar.sha256)}


def _sha256(digest: str) -> dict[str, Any]:
    return {"hashes": [{"alg": "SHA-256", "content": digest}]}
