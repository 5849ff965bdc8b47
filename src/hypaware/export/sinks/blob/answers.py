"""Translate the errors of an object store into the exceptions of the sink interface."""

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
# Error codes with status 400 or 409 that a retry may cure: the connection broke, or a concurrent request won.
_PASSING = re.compile(r"RequestTimeout|IncompleteBody|ConditionalRequestConflict|OperationAborted")
_KEYS = "export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… && hyp engine stop"


@contextmanager
def told(location: BucketPlace) -> Iterator[None]:
    """Translate the exceptions of obstore into Denied, Busy or Unreachable. AlreadyExistsError passes through."""
    try:
        yield
    except (exceptions.AlreadyExistsError, Denied, Busy, Unreachable):
        raise
    except TimeoutError:
        raise Unreachable(f"{location.address} did not respond in time") from None
    except FileNotFoundError as error:
        if is_about_bucket(error):
            raise _no_bucket(location) from None
        raise
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise _judged(str(error), location, isinstance(error, exceptions.UnauthenticatedError)) from None


def is_about_bucket(error: FileNotFoundError) -> bool:
    return bool(_NO_BUCKET.search(str(error)))


def _judged(text: str, location: BucketPlace, unauthenticated: bool) -> Denied | Busy | Unreachable:
    status = int(found[1]) if (found := _STATUS.search(text)) else None
    problem = f"{location.address} responded with {_reason(text, status)}"
    if _NO_IDENTITY.search(text):
        return Denied(
            f"no credentials for {location.address}: neither the environment nor a profile holds keys",
            kind="no_credentials",
            repair=_KEYS if location.scheme == "s3" else None,
        )
    if _REGION.search(text):
        return Denied(f"{problem}. Set the region of the sink", kind="wrong_region", repair="hyp config show")
    if status == 401 or unauthenticated or re.search("InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken", text):
        repair = _KEYS if location.scheme == "s3" else None
        return Denied(f"{problem}. The credentials are not accepted", kind="bad_credentials", repair=repair)
    if status == 403:
        needed = "The sink needs permission to list, read and write below the prefix"
        return Denied(f"{problem}. {needed}", kind="no_permission")
    if status == 404 and _NO_BUCKET.search(text):
        return _no_bucket(location)
    if status in (429, 503):
        return Busy(problem)
    if status is not None and 400 <= status < 500 and status not in (408, 409, 425) and not _PASSING.search(text):
        return Denied(problem, kind="refused_by_store")
    if status == 501:
        return Denied(f"{problem}. The store must support conditional writes", kind="unsupported_store")
    return Unreachable(problem if status else f"{location.address} does not respond: {_reason(text, None)}")


def _no_bucket(location: BucketPlace) -> Denied:
    kind = "container" if location.scheme == "abfss" else "bucket"
    return Denied(
        f"the {kind} {location.bucket} does not exist ({location.address}); create it first",
        kind="no_such_bucket",
        repair="hyp config show",
    )


def _reason(text: str, status: int | None) -> str:
    """Return the cause, without the request's signature and the library's internals."""
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code:
        return f"{status} {code[1]}" + (f": {message[1]}" if message else "")
    line = text.partition("\n")[0]
    return f"{status}" if status else line.rpartition(" - ")[2][:200]
