"""Gives a user without a passwd entry (`docker run --user 12345:0`) a name and writable caches.

torch.compile asks getpass for a name and Triton for a home directory; both fail for such a user.
Nothing is changed for a user who has them.
"""

import os
import pwd


def _has_home() -> bool:
    home = os.path.expanduser("~")
    return home != "/" and os.access(home, os.W_OK)


def _prepare() -> None:
    uid = os.getuid()
    try:
        pwd.getpwuid(uid)
    except KeyError:
        if not any(os.environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")):
            os.environ["USER"] = f"uid{uid}"
    if not _has_home():
        os.environ.setdefault("TRITON_CACHE_DIR", f"/tmp/triton_{uid}")


_prepare()
