"""Find the credentials of an S3 store, in this order:

1. the environment variables named by `access_key_env` and `secret_key_env`;
2. `AWS_ACCESS_KEY_ID` and its companions;
3. the profile (`AWS_PROFILE`, otherwise `default`) in the shared files of the AWS tools, if it holds keys;
4. the identity of the machine: a web identity, a container role or an instance role.

obstore implements the second and the fourth. Credentials are read again each time a sink is opened. A message never
contains a secret.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypaware.export.sink import Denied


@dataclass(frozen=True)
class Keys:
    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


def keys_of(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Keys | None:
    """Return the keys, or None to let obstore find them."""
    names = (options.get("access_key_env"), options.get("secret_key_env"))
    if any(names):
        return Keys(*(_named(option, name, environment) for option, name in zip(_OPTIONS, names, strict=True)))
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        return None
    profile = _profile(environment)
    access_key, secret_key = profile.get("aws_access_key_id"), profile.get("aws_secret_access_key")
    return Keys(access_key, secret_key, profile.get("aws_session_token")) if access_key and secret_key else None


def region_of(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> str:
    named = options.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    return str(named or _profile(environment).get("region") or "us-east-1")


_OPTIONS = ("access_key_env", "secret_key_env")


def _named(option: str, name: Any, environment: Mapping[str, str]) -> str:
    if not name:
        raise Denied(f"{' and '.join(_OPTIONS)} must be set together; {option} is missing", kind="no_credentials")
    if not (value := environment.get(str(name))):
        raise Denied(
            f"{option} names the environment variable {name}, which is not set in the engine's environment",
            kind="no_credentials",
            repair=f"export {name}=… && hyp engine stop",
        )
    return value


def _profile(environment: Mapping[str, str]) -> dict[str, str]:
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
            raise Denied(f"{path} cannot be read: {type(error).__name__}", kind="no_credentials") from None
        if parser.has_section(section):
            found |= dict(parser.items(section))
    return found
