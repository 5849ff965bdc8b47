"""Credentials of object stores, and the errors when they fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore import exceptions

from hypaware.export.sink import DestinationBusy, DestinationDenied, DestinationUnreachable
from hypaware.export.sinks.blob import BucketLocation
from hypaware.export.sinks.blob.object_store import find_keys, find_region, translate_errors
from hypaware.home.s3_keys import S3Keys

PLACE = BucketLocation("s3", "bucket", "x")


def test_configured_environment_variables_come_first() -> None:
    environment = {"MINE": "id", "MY_SECRET": "hush", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}

    assert find_keys({"access_key_env": "MINE", "secret_key_env": "MY_SECRET"}, environment) == S3Keys("id", "hush")


def test_standard_aws_variables_are_left_to_the_client() -> None:
    assert find_keys({}, {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "HOME": "/nowhere"}) is None


def test_a_profile_of_the_aws_tools_is_read(tmp_path: Path) -> None:
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = b%c\n"
        "[work]\naws_access_key_id = d\naws_secret_access_key = e\naws_session_token = f\n"
    )
    (folder / "config").write_text("[default]\nregion = eu-west-1\n[profile work]\nregion = eu-north-1\n")

    assert find_keys({}, {"HOME": str(tmp_path)}) == S3Keys("a", "b%c")
    assert find_keys({}, {"HOME": str(tmp_path), "AWS_PROFILE": "work"}) == S3Keys("d", "e", "f")
    assert find_keys({}, {"HOME": str(tmp_path), "AWS_PROFILE": "none"}) is None
    assert find_region({}, {"HOME": str(tmp_path), "AWS_PROFILE": "work"}) == "eu-north-1"
    assert find_region({"region": "us-west-2"}, {"HOME": str(tmp_path), "AWS_REGION": "x"}) == "us-west-2"
    assert find_region({}, {"HOME": str(tmp_path), "AWS_REGION": "eu-west-3"}) == "eu-west-3"


def test_an_unreadable_profile_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("no section")

    with pytest.raises(DestinationDenied, match="broken cannot be read"):
        find_keys({}, {"HOME": str(tmp_path), "AWS_CONFIG_FILE": str(tmp_path / "broken")})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"access_key_env": "MINE"}, "secret_key_env is missing"),
        ({"secret_key_env": "MINE"}, "access_key_env is missing"),
        ({"access_key_env": "MINE", "secret_key_env": "GONE"}, "GONE, which is not set"),
    ],
)
def test_an_incomplete_credential_is_denied(options: dict[str, str], reason: str) -> None:
    with pytest.raises(DestinationDenied, match=reason) as denied:
        find_keys(options, {"MINE": "hunter2"})

    assert "hunter2" not in str(denied.value)


def test_secrets_do_not_appear_in_repr() -> None:
    assert "hush" not in repr(S3Keys("id", "hush", "hush too"))


def answer(status: int, code: str = "", message: str = "") -> str:
    """Return an error as obstore formats it."""
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
def test_errors_that_need_a_user_are_denied(error: Exception, kind: str) -> None:
    with pytest.raises(DestinationDenied) as denied, translate_errors(PLACE):
        raise error

    assert denied.value.kind == kind
    assert "s3://bucket/x" in str(denied.value)
    assert "AKIA" not in str(denied.value)
    assert "Debug" not in str(denied.value)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_store_is_reported_as_busy(status: int) -> None:
    with pytest.raises(DestinationBusy, match="SlowDown"), translate_errors(PLACE):
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
def test_errors_that_say_nothing_about_the_chunk_are_retried(error: Exception) -> None:
    with pytest.raises(DestinationUnreachable, match="s3://bucket/x"), translate_errors(PLACE):
        raise error
