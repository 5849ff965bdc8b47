"""What an object store answered, as the driver understands it: patience, another try, or a person."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore import exceptions

from hypaware.export.sink import Busy, Denied, Unreachable
from hypaware.export.sinks.blob.address import BucketPlace

_STATUS = re.compile(r"status code: ([0-9]{3})")
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_NO_IDENTITY = re.compile(r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google|/metadata/identity|MissingCredential")
_REGION = re.compile(r"AuthorizationHeaderMalformed|PermanentRedirect|IllegalLocationConstraint")
# A bad request that says nothing against the request: the connection broke, or somebody else was quicker.
_PASSING = re.compile(r"RequestTimeout|IncompleteBody|ConditionalRequestConflict|OperationAborted")
_KEYS = "export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… && hyp engine stop"


@contextmanager
def told(place: BucketPlace) -> Iterator[None]:
    """Turns what obstore raises into Denied, Busy or Unreachable; what says that something is there passes through."""
    try:
        yield
    except (exceptions.AlreadyExistsError, Denied, Busy, Unreachable):
        raise
    except TimeoutError:
        raise Unreachable(f"{place.address} took too long to answer") from None
    except FileNotFoundError as error:
        if is_about_bucket(error):
            raise _no_bucket(place) from None
        raise
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise _judged(str(error), place, isinstance(error, exceptions.UnauthenticatedError)) from None


def is_about_bucket(error: FileNotFoundError) -> bool:
    return bool(_NO_BUCKET.search(str(error)))


def _judged(text: str, place: BucketPlace, unauthenticated: bool) -> Denied | Busy | Unreachable:
    status = int(found[1]) if (found := _STATUS.search(text)) else None
    what = f"{place.address} answers {_reason(text, status)}"
    if _NO_IDENTITY.search(text):
        return Denied(
            f"there are no credentials for {place.address}: neither in the environment nor in a profile with keys",
            kind="no_credentials",
            repair=_KEYS if place.scheme == "s3" else None,
        )
    if _REGION.search(text):
        return Denied(f"{what}. Set the sink's region", kind="wrong_region", repair="hyp config show")
    if status == 401 or unauthenticated or re.search("InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken", text):
        repair = _KEYS if place.scheme == "s3" else None
        return Denied(f"{what}. The credentials are not accepted", kind="bad_credentials", repair=repair)
    if status == 403:
        needed = "It needs leave to list, read and write below the prefix"
        return Denied(f"{what}. {needed}", kind="no_permission")
    if status == 404 and _NO_BUCKET.search(text):
        return _no_bucket(place)
    if status in (429, 503):
        return Busy(what)
    if status is not None and 400 <= status < 500 and status not in (408, 409, 425) and not _PASSING.search(text):
        return Denied(what, kind="refused_by_store")
    if status == 501:
        return Denied(f"{what}. It must support writes that fail where something is", kind="unsupported_store")
    return Unreachable(what if status else f"{place.address} does not answer: {_reason(text, None)}")


def _no_bucket(place: BucketPlace) -> Denied:
    kind = "container" if place.scheme == "abfss" else "bucket"
    return Denied(
        f"there is no {kind} {place.bucket} ({place.address}); it is not made for you",
        kind="no_such_bucket",
        repair="hyp config show",
    )


def _reason(text: str, status: int | None) -> str:
    """Without the request's signature and the library's own view of things."""
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code:
        return f"{status} {code[1]}" + (f": {message[1]}" if message else "")
    line = text.partition("\n")[0]
    return f"{status}" if status else line.rpartition(" - ")[2][:200]
