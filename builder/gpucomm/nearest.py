"""Guesses what a misspelt name was meant to be.

Owns: that one guess, as the end of a message. It knows no names of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'name'?` for the one of `known` most like `word`, or nothing."""
    names = {name.casefold(): name for name in sorted(known) if name != word}
    found = get_close_matches(word.casefold(), names, n=1)
    return f"; did you mean {names[found[0]]!r}?" if found else ""
