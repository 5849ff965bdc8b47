"""The keys and the region of S3, as the AWS tools find them. No message contains a key.

The order is: `AWS_ACCESS_KEY_ID` and its companions; the profile (`AWS_PROFILE`, otherwise `default`) in the files of
the AWS tools, if it holds keys; the identity of the machine. The client finds the first and the last without help.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hypaware.errors import NotReady


@dataclass(frozen=True)
class S3Keys:
    """Keys in the form that obstore expects."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    expires_at: None = None


def find_profile_keys(environment: Mapping[str, str] = os.environ) -> S3Keys | None:
    """Return the keys of the profile, or None to let the client find the keys."""
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        return None
    return _to_keys(read_profile(environment))


def read_keys_file(path: Path) -> S3Keys:
    """Return the keys of a file in the format of the AWS tools, from the section `AWS_PROFILE` or `default`."""
    environment = {
        "AWS_SHARED_CREDENTIALS_FILE": str(path),
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_PROFILE": os.environ.get("AWS_PROFILE", ""),
    }
    if not path.is_file():
        raise NotReady(f"the file with the credentials of S3 {path} does not exist", kind="no_credentials")
    if (keys := _to_keys(read_profile(environment))) is None:
        raise NotReady(
            f"{path} has no aws_access_key_id and aws_secret_access_key in the section "
            f"{environment['AWS_PROFILE'] or 'default'}",
            kind="no_credentials",
        )
    return keys


def find_region(named: str | None, environment: Mapping[str, str] = os.environ) -> str:
    named = named or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    return named or read_profile(environment).get("region") or "us-east-1"


def _to_keys(profile: Mapping[str, str]) -> S3Keys | None:
    if not profile.get("aws_access_key_id") or not profile.get("aws_secret_access_key"):
        return None
    return S3Keys(profile["aws_access_key_id"], profile["aws_secret_access_key"], profile.get("aws_session_token"))


def read_profile(environment: Mapping[str, str]) -> dict[str, str]:
    name = environment.get("AWS_PROFILE") or "default"
    folder = Path(environment.get("HOME") or "~").expanduser() / ".aws"
    found: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        path = Path(environment.get(variable) or folder / file).expanduser()
        parser = configparser.RawConfigParser(default_section="", strict=False)
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            raise NotReady(f"{path} cannot be read: {type(error).__name__}", kind="no_credentials") from None
        if parser.has_section(section):
            found |= dict(parser.items(section))
    return found
