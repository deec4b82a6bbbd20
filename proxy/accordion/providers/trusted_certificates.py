"""Says what is wrong with the file of trusted certificates that the environment names.

OpenSSL ignores a file that it cannot use. Then no certificate is trusted, and each connection fails by itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLE = "SSL_CERT_FILE"
_BEGINNING = b"-----BEGIN "


def find_certificate_problem(environ: Mapping[str, str]) -> str:
    """Returns why the file that `SSL_CERT_FILE` names cannot be used; empty if it can, or if none is named."""
    path = environ.get(VARIABLE, "")
    if not path:
        return ""
    try:
        with open(path, "rb") as file:
            has_certificate = _BEGINNING in file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"{VARIABLE} names {path}, which cannot be read: {reason.lower()}"
    return "" if has_certificate else f"{VARIABLE} names {path}, which has no certificate in PEM format"


def advise_on_certificates() -> str:
    """Returns what to do about a certificate that is not trusted."""
    return find_certificate_problem(os.environ) or f"{VARIABLE} may name a file of trusted certificates"
