"""Where things lie: the checkout, and the cache that outlives it.

The cache (bases, verification records) is keyed by content, so any checkout may share it. Logs
belong to the checkout.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpucomm.errors import WrongInput
from gpucomm.matrix import FILE


@dataclass(frozen=True, kw_only=True)
class Places:
    """Folders of one run."""

    root: Path
    cache: Path

    @property
    def templates(self) -> Path:
        """Jinja templates and the files that every image gets."""
        return self.root / "templates"

    @property
    def images(self) -> Path:
        """Rendered, committed."""
        return self.root / "images"

    @property
    def on_demand(self) -> Path:
        """Lock and rendered files of cells that are not standard; not committed."""
        return self.root / ".gpucomm" / "on-demand"

    @property
    def image_tests(self) -> Path:
        """What runs against every built image."""
        return self.root / "tests" / "images"

    @property
    def selftest(self) -> Path:
        """Source of the package that every image carries."""
        return self.root / "selftest"

    @property
    def logs(self) -> Path:
        """Full log of the last build and check of every cell."""
        return self.root / ".gpucomm" / "logs"


def find(env: Mapping[str, str] = os.environ, start: Path | None = None) -> Places:
    """The checkout around `start` (default: the working directory), and the cache."""
    here = (start or Path.cwd()).resolve()
    root = next((path for path in (here, *here.parents) if (path / FILE).is_file()), None)
    if root is None:
        raise WrongInput(f"no {FILE} in {here} or above it: run gpucomm in a checkout")
    cache = env.get("GPUCOMM_CACHE") or f"{env.get('XDG_CACHE_HOME') or '~/.cache'}/gpucomm"
    return Places(root=root, cache=Path(cache).expanduser().absolute())
