"""Build what is released into dist/: sdist, wheel, software bill of materials, and SHA256SUMS over them.

The last commit is built, from a clone of its own: what is not committed is not in it. The wheel is built from the
sdist, as installers of the sdist do. The same commit gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from scripts import sbom

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist", help="where to put the files")
    parser.add_argument("--source", type=Path, default=ROOT, help="the clone whose last commit is built")
    options = parser.parse_args()
    source: Path = options.source.resolve()
    if _git(source, "status", "--porcelain", "--untracked-files=no"):
        sys.stderr.write("warning: changes that are not committed are not in the build\n")
    for path in build(source, options.folder.resolve()):
        sys.stdout.write(f"{path.stat().st_size:>10,}  {path}\n")
    return 0


def build(source: Path, folder: Path) -> list[Path]:
    """Build the last commit of the clone. The folder is replaced when everything is built."""
    commit, epoch = _git(source, "log", "-1", "--format=%H %ct").split()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PYTHONPATH": ""}
    with tempfile.TemporaryDirectory() as temporary:
        clone, made = Path(temporary) / "clone", Path(temporary) / "made"
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(source), str(clone)], check=True)
        _git(clone, "-c", "advice.detachedHead=false", "checkout", "--quiet", commit)
        _hatch(clone, "sdist", made, environment)
        (sdist,) = made.glob("*.tar.gz")
        with tarfile.open(sdist) as packed:
            packed.extractall(temporary, filter="data")
        _hatch(Path(temporary) / sdist.name.removesuffix(".tar.gz"), "wheel", made, environment)
        (wheel,) = made.glob("*.whl")
        version, requirements = read_metadata(wheel)
        bom = made / f"hypaware-{version}.cdx.json"
        bom.write_text(sbom.write(version, int(epoch), requirements, clone / "requirements.lock"), encoding="utf-8")
        files = [sdist, wheel, bom]
        sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
        (made / "SHA256SUMS").write_text(sums, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made, folder)
    return sorted(folder.iterdir())


def read_metadata(wheel: Path) -> tuple[str, list[str]]:
    """Return the version of a wheel and what it requires."""
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(packed.read(name).decode())
    return str(headers["Version"]), [str(each) for each in headers.get_all("Requires-Dist", [])]


def _hatch(project: Path, target: str, into: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-P", "-m", "hatchling", "build", "--target", target, "--directory", str(into)]
    done = subprocess.run(command, cwd=project, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"cannot build the {target}:\n{done.stdout}{done.stderr}")


def _git(where: Path, *arguments: str) -> str:
    command = ["git", "-C", str(where), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
