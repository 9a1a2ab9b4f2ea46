"""Takes secrets out of what leaves the machine in a support bundle. Pure.

A secret is the value of a variable whose name says so, and the user part of a URL, wherever it
stands again in any text.
"""

import re
from collections.abc import Mapping
from typing import Any

_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|SIGNATURE|PRIVATE|AUTH|SESSION"
    r"|(^|_)(KEY|KEYS|PWD|PASS|PAT|APIKEY|DSN)$|API_?KEY|ACCESS_?KEY|_KEY_",
    re.IGNORECASE,
)
# Set by shells and harmless, though their names look like the above.
_HARMLESS = {"PWD", "OLDPWD", "XAUTHORITY", "SESSION_MANAGER", "DESKTOP_SESSION"}
_URL_USER = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@'\"]+@")
# Shorter values stand in other words by chance, and no secret is that short.
_SHORTEST = 6

REMOVED = "[redacted]"


def secret_values(environ: Mapping[str, str]) -> list[str]:
    """The values that must not leave, the longest first: one may be part of another."""
    values = {
        value
        for name, value in environ.items()
        if _SECRET_NAME.search(name) and name not in _HARMLESS and len(value) >= _SHORTEST
    }
    return sorted(values, key=lambda value: (-len(value), value))


def redact(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, REMOVED)
    return _URL_USER.sub(rf"\g<scheme>{REMOVED}@", text)


def redact_environment(environ: Mapping[str, str], secrets: list[str]) -> dict[str, str]:
    """Every variable, the secret ones by name alone."""
    return {
        name: REMOVED
        if _SECRET_NAME.search(name) and name not in _HARMLESS
        else redact(value, secrets)
        for name, value in sorted(environ.items())
    }


def redact_all(value: Any, secrets: list[str]) -> Any:
    """The same in any JSON value, keys included."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, list):
        return [redact_all(one, secrets) for one in value]
    if isinstance(value, dict):
        return {redact(name, secrets): redact_all(one, secrets) for name, one in value.items()}
    return value
