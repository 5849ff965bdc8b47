"""In whose name a store is opened, and what the user is told when that fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore import exceptions

from hypaware.export.sink import Busy, Denied, Unreachable
from hypaware.export.sinks.blob.address import BucketPlace
from hypaware.export.sinks.blob.answers import told
from hypaware.export.sinks.blob.credentials import Keys, keys_of, region_of

PLACE = BucketPlace("s3", "bucket", "x")


def test_the_variables_that_the_sink_names_come_first() -> None:
    environment = {"MINE": "id", "MY_SECRET": "hush", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}

    assert keys_of({"access_key_env": "MINE", "secret_key_env": "MY_SECRET"}, environment) == Keys("id", "hush")


def test_the_usual_variables_are_left_to_the_client() -> None:
    assert keys_of({}, {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "HOME": "/nowhere"}) is None


def test_a_profile_of_the_aws_tools_is_read(tmp_path: Path) -> None:
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = b%c\n"
        "[work]\naws_access_key_id = d\naws_secret_access_key = e\naws_session_token = f\n"
    )
    (folder / "config").write_text("[default]\nregion = eu-west-1\n[profile work]\nregion = eu-north-1\n")

    assert keys_of({}, {"HOME": str(tmp_path)}) == Keys("a", "b%c")
    assert keys_of({}, {"HOME": str(tmp_path), "AWS_PROFILE": "work"}) == Keys("d", "e", "f")
    assert keys_of({}, {"HOME": str(tmp_path), "AWS_PROFILE": "none"}) is None
    assert region_of({}, {"HOME": str(tmp_path), "AWS_PROFILE": "work"}) == "eu-north-1"
    assert region_of({"region": "us-west-2"}, {"HOME": str(tmp_path), "AWS_REGION": "x"}) == "us-west-2"
    assert region_of({}, {"HOME": str(tmp_path), "AWS_REGION": "eu-west-3"}) == "eu-west-3"


def test_a_profile_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("no section")

    with pytest.raises(Denied, match="broken cannot be read"):
        keys_of({}, {"HOME": str(tmp_path), "AWS_CONFIG_FILE": str(tmp_path / "broken")})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"access_key_env": "MINE"}, "secret_key_env is missing"),
        ({"secret_key_env": "MINE"}, "access_key_env is missing"),
        ({"access_key_env": "MINE", "secret_key_env": "GONE"}, "GONE, which is not set"),
    ],
)
def test_half_a_credential_is_none(options: dict[str, str], reason: str) -> None:
    with pytest.raises(Denied, match=reason) as denied:
        keys_of(options, {"MINE": "hunter2"})

    assert "hunter2" not in str(denied.value)


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in repr(Keys("id", "hush", "hush too"))


def answer(status: int, code: str = "", message: str = "") -> str:
    """As obstore words it."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message><StringToSign>AKIA</StringToSign></Error>"
    return (
        "Generic S3 error: Error performing PUT http://127.0.0.1:1/bucket/x in 4ms - "
        f"Server returned non-2xx status code: {status} Words: {body}\n\nDebug source:\nGeneric {{ … }}"
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.PermissionDeniedError(answer(403, "SignatureDoesNotMatch")), "bad_credentials"),
        (exceptions.PermissionDeniedError(answer(403, "InvalidAccessKeyId")), "bad_credentials"),
        (exceptions.UnauthenticatedError(answer(401)), "bad_credentials"),
        (exceptions.GenericError(answer(400, "ExpiredToken")), "bad_credentials"),
        (exceptions.PermissionDeniedError(answer(403, "AccessDenied")), "no_permission"),
        (exceptions.GenericError(answer(404, "NoSuchBucket")), "no_such_bucket"),
        (FileNotFoundError(answer(404, "NoSuchBucket")), "no_such_bucket"),
        (exceptions.GenericError(answer(400, "AuthorizationHeaderMalformed")), "wrong_region"),
        (exceptions.GenericError(answer(301, "PermanentRedirect")), "wrong_region"),
        (exceptions.GenericError(answer(400, "KeyTooLongError")), "refused_by_store"),
        (exceptions.GenericError(answer(501, "NotImplemented")), "unsupported_store"),
        (exceptions.GenericError("Error performing PUT http://169.254.169.254/latest/api/token"), "no_credentials"),
    ],
)
def test_what_needs_a_person_is_told_to_one(error: Exception, kind: str) -> None:
    with pytest.raises(Denied) as denied, told(PLACE):
        raise error

    assert denied.value.kind == kind
    assert "s3://bucket/x" in str(denied.value)
    assert "AKIA" not in str(denied.value)
    assert "Debug" not in str(denied.value)


@pytest.mark.parametrize("status", [429, 503])
def test_a_store_that_is_busy_gets_time(status: int) -> None:
    with pytest.raises(Busy, match="SlowDown"), told(PLACE):
        raise exceptions.GenericError(answer(status, "SlowDown"))


@pytest.mark.parametrize(
    "error",
    [
        exceptions.GenericError(answer(500, "InternalError")),
        exceptions.GenericError(answer(502)),
        exceptions.GenericError(answer(400, "RequestTimeout")),
        exceptions.GenericError(answer(409, "ConditionalRequestConflict")),
        exceptions.GenericError("Generic S3 error: Error performing PUT … - HTTP error: error sending request"),
        TimeoutError(),
    ],
)
def test_what_says_nothing_about_the_chunk_is_tried_again(error: Exception) -> None:
    with pytest.raises(Unreachable, match="s3://bucket/x"), told(PLACE):
        raise error
