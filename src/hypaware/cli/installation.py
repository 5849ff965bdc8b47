"""`hyp version`, `hyp plugin`, `hyp dev` and `hyp engine`: facts about this installation, and the Spark process.

The versions are found without importing Spark or starting Java.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from hypaware import __version__, config
from hypaware.cli import output
from hypaware.cli.command import Command, Group, json_option
from hypaware.cli.jobs import event_handler, open_progress
from hypaware.errors import NotReady
from hypaware.home import Home, cache_dir
from hypaware.text import format_size


@click.command("version", cls=Command, examples=["hyp version", "hyp version --json"])
@json_option
def version() -> None:
    """Show the versions of HypAware, Python, Java, Spark and Iceberg. "-" means not installed."""
    import platform
    from importlib import metadata

    from hypaware.engine import jars, jvm

    # The engine loads only the pinned version.
    iceberg = next((jar.version for jar in jars.locked_jars() if jar.name.startswith("iceberg-spark-runtime")), None)
    try:
        java = jvm.find_java().version
    except NotReady:
        java = None
    try:
        spark = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        spark = None
    found = {
        "hypaware": __version__,
        "python": platform.python_version(),
        "java": java,
        "spark": spark,
        "iceberg": iceberg,
        "platform": platform.platform(),
    }
    output.emit_result(found)


@click.group("plugin", cls=Group, examples=["hyp plugin list"])
def plugin() -> None:
    """List plugins and their errors."""


@plugin.command("list", examples=["hyp plugin list", "hyp plugin list --json"])
@json_option
def list_() -> None:
    """List all registered clients, sinks, encoders, datasets and materializers, including built-in ones."""
    from hypaware.plugins import list_plugins

    found = list_plugins()
    if output.emit_document({"plugins": [asdict(one) for one in found]}):
        return
    output.emit_table(
        ["group", "name", "package", "status"],
        [(one.group, one.name, f"{one.distribution} {one.version}", one.status) for one in found],
    )
    for one in found:
        if one.error:
            output.warn(f"cannot load {one.name} ({one.distribution}): {one.error}")


@click.group("dev", cls=Group, examples=["hyp dev crash-points"])
def dev() -> None:
    """Use tools for developing HypAware."""


@dev.command(
    "crash-points", examples=["hyp dev crash-points", "HYP_CRASH_AT=<point>[:n] hyp flush"], any_crash_point=True
)
@json_option
def crash_points() -> None:
    """List the crash points: places before and after each durable step where HYP_CRASH_AT can kill the process."""
    from hypaware import faults

    points = faults.list_crash_points()
    document = [{"name": one.name, "package": one.package, "about": one.about} for one in points]
    if not output.emit_document({"points": document}):
        output.emit_table(["point", "about"], [(one.name, one.about) for one in points])


@click.group("engine", cls=Group, examples=["hyp engine install", "hyp engine status --json"])
def engine() -> None:
    """Install, start and stop the engine.

    The engine is the background process that runs Spark. Other commands start it when they need it.
    """


@engine.command("install", examples=["hyp engine install", "hyp engine install --bundle engine.zip"])
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Take the jars from a file that `hyp engine bundle` made, instead of downloading them.",
)
@json_option
def install(bundle: Path | None) -> None:
    """Download the engine's jars and prepare a fast start. Afterwards the engine needs no network."""
    from hypaware.config.shared_lake import find_shared_lake
    from hypaware.engine import class_archive, jar_bundle, jars, jvm

    with open_progress() as bar:
        found = jvm.find_java()
        if bundle is not None:
            jar_bundle.check_bundle(bundle)
        fetch = None if bundle is None else jar_bundle.fetch_from(bundle)
        fetched = jars.install_jars(cache_dir(), bar.report, fetch=fetch)
        if find_shared_lake(Home.from_environment()) is not None:
            shared = jars.install_jars(cache_dir(), bar.report, jars=jars.shared_jars())
            fetched = jars.InstalledJars(fetched.paths + shared.paths, fetched.fetched or shared.fetched)
        archived = class_archive.ensure_archive(cache_dir(), bar.report)
    report = {
        "java": found.version,
        "jars": [path.name for path in fetched.paths],
        "fetched": fetched.fetched,
        "archive": archived is not None,
    }
    output.emit_result(report)


@engine.command("bundle", examples=["hyp engine bundle engine.zip", "hyp engine install --bundle engine.zip"])
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option
def bundle(file: Path) -> None:
    """Write the engine's jars into FILE, for a machine without a network. Missing jars are downloaded first.

    Java and the Python packages are not in it. On the other machine, run `hyp engine install --bundle FILE` with the
    same version of HypAware. Each jar is compared with the hash that this version pins.
    """
    from hypaware.engine import jar_bundle, jars

    with open_progress() as bar:
        jars.install_jars(cache_dir(), bar.report)
        size = jar_bundle.write_bundle(file, cache_dir())
    report = {"file": str(file), "bytes": size, "jars": [jar.file_name for jar in jars.locked_jars()]}
    output.emit_result(report, f"wrote {file} ({format_size(size)})")


@engine.command("start", examples=["hyp engine start"])
@json_option
def start() -> None:
    """Start the engine of this home, if it is not running."""
    from hypaware.engine import client

    home = Home.from_environment()
    with open_progress() as bar:
        client.start_engine(home, config.load(home), event_handler(bar))
    _print_status(home)


@engine.command("stop", examples=["hyp engine stop"])
@json_option
def stop() -> None:
    """Stop the engine of this home.

    Running jobs get a moment to finish. Acknowledged rows are never lost.
    """
    from hypaware.engine import client

    stopped = client.stop_engine(Home.from_environment())
    output.emit_result({"stopped": stopped}, "the engine is stopped" if stopped else "no engine was running")


@engine.command("status", examples=["hyp engine status", "hyp engine status --json"])
@json_option
def status() -> None:
    """Show whether the engine is running, since when, and its current jobs."""
    _print_status(Home.from_environment())


def _print_status(home: Home) -> None:
    from hypaware.engine import client

    found = client.engine_status(home)
    if output.emit_document(found):
        return
    if "jobs" in found:
        found = {**found, "jobs": ", ".join(str(each["job"]) for each in found["jobs"]) or "none"}
    output.emit_fields(found)
