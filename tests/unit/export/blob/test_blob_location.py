"""Canonical addresses of blob destinations, and the errors for invalid ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hypaware.errors import ConfigError
from hypaware.export.sink import SinkSettings
from hypaware.export.sinks.blob import BLOB, BucketLocation, FolderLocation, parse_location
from hypaware.home import Home

HERE = {"AZURE_STORAGE_ACCOUNT_NAME": "acme"}


def spelled(written: str, environment: dict[str, str] | None = None, **options: str) -> str:
    return parse_location({"destination": written, **options}, environment or {}).address


@pytest.mark.parametrize(
    ("spellings", "address"),
    [
        (("/data/x", "/data/x/", "//data//x", "/data/./y/../x", "file:///data/x", "file://localhost/data/x/"), "file:///data/x"),
        (("/with space/ü", "file:///with%20space/%C3%BC"), "file:///with space/ü"),
        (("s3://bucket", "s3://bucket/", "S3://bucket//", "s3a://bucket"), "s3://bucket"),
        (("s3://bucket/a/b", "s3://bucket/a/b/", "s3://bucket//a//b", " s3://bucket/a/b "), "s3://bucket/a/b"),
        (("s3://bucket/a%20b",), "s3://bucket/a%20b"),
        (("gs://bucket/a/",), "gs://bucket/a"),
        (
            ("az://box/a", "azure://box/a/", "abfs://box@acme.dfs.core.windows.net/a", "abfss://box@acme.dfs.core.windows.net/a"),
            "abfss://box@acme.dfs.core.windows.net/a",
        ),
    ],
)  # fmt: skip
def test_a_destination_has_one_canonical_address(spellings: tuple[str, ...], address: str) -> None:
    assert {spelled(each, HERE) for each in spellings} == {address}


def test_a_tilde_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")

    assert parse_location({"destination": "~/archive"}) == FolderLocation(Path("/home/ada/archive"))


def test_the_endpoint_is_part_of_the_address() -> None:
    """A bucket of the same name on another server is another destination."""
    by_option = spelled("s3://bucket/x", endpoint="http://Store.example:9000/")
    by_environment = spelled("s3://bucket/x", {"AWS_ENDPOINT_URL": "http://store.example:9000"})

    assert by_option == by_environment == "s3://bucket/x?endpoint=http://store.example:9000"
    assert spelled("s3://bucket/x") == "s3://bucket/x"


def test_the_config_overrides_the_environment() -> None:
    place = parse_location(
        {"destination": "s3://bucket", "endpoint": "https://a.example"}, {"AWS_ENDPOINT_URL": "https://b.example"}
    )

    assert isinstance(place, BucketLocation)
    assert place.endpoint == "https://a.example"


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("archive", "absolute path"),
        ("./archive", "absolute path"),
        ("ftp://host/x", "unknown scheme ftp://"),
        ("file://host/x", "has no host"),
        ("s3://", "the bucket is missing"),
        ("s3:///x", "the bucket is missing"),
        ("s3://bucket/a/../b", "are not allowed"),
        ("s3://bucket/x?versionId=1", "a query"),
        ("s3://bucket/x#y", "a fragment"),
        ("s3://bucket/a\nb", "a control character"),
        ("s3://host:9000/x", "set the server with endpoint"),
        ("az://box/a", "the storage account is missing"),
    ],
)
def test_an_invalid_destination_is_refused_with_the_reason(written: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        spelled(written)


@pytest.mark.parametrize(
    "endpoint", ["store.example:9000", "ftp://store.example", "http://", "http://me@store.example"]
)
def test_an_endpoint_must_be_an_http_url(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="endpoint"):
        spelled("s3://bucket", endpoint=endpoint)


@pytest.mark.parametrize("option", ["endpoint", "region", "access_key_env", "secret_key_env"])
def test_an_s3_option_is_refused_for_other_destinations(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is only valid for s3"):
        parse_location({"destination": "/data", option: "x"}, {})


def test_the_sink_type_returns_the_address(tmp_path: Path) -> None:
    options = {"destination": f"{tmp_path}/x/", "encoder": "parquet"}

    assert BLOB.address(SinkSettings("archive", Home(tmp_path), options, (), "gw", "00")) == f"file://{tmp_path}/x"


def test_the_address_of_a_blob_sink_needs_no_heavy_import() -> None:
    """Whether a round is idle is decided with it, in milliseconds."""
    script = (
        "import sys\n"
        "from hypaware.export.sinks.blob import parse_location\n"
        "from hypaware.export.sinks.blob import BLOB\n"
        "parse_location({'destination': 's3://bucket/x'}, {})\n"
        "print(*({'pyarrow', 'obstore', 'pyspark', 'aiohttp'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""
