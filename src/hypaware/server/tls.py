"""The certificate with which the server and its page serve HTTPS."""

from __future__ import annotations

import ssl
from pathlib import Path

from hypaware.errors import UsageError


def load_certificate(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the context for connections; None without a certificate. Raise UsageError if it cannot be used."""
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"cannot use the certificate {certificate}: {error}") from error
    return context
