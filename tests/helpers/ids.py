"""Names of tests that are the same in each process that collects them."""

from __future__ import annotations

import re


def said(value: object) -> str:
    """Return a parameter in words, without addresses in memory."""
    if isinstance(value, type):
        return value.__name__
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
