"""The GPU that a source's wording means."""

from __future__ import annotations

import re
from typing import Any

from planner.instance import catalog


def gpu_of(text: str) -> dict[str, Any] | None:
    """Fields of the catalog's GPU for wordings such as ``A100_40GB`` or ``H100 80GB SXM``.

    The type is the first word; among entries of one type the one with the memory stated, or the
    largest if none is.  None if the catalog has no such type.
    """
    words = [word.upper() for word in re.split(r"[^A-Za-z0-9]+", text) if word]
    if not words:
        return None
    names = [n for n in catalog.names("gpus") if n.upper().split("-")[0] == words[0]]
    if not names:
        return None
    size = re.search(r"(\d+) ?GB", text)
    if size:
        stated = [n for n in names if f"{words[0]}-{size.group(1)}" == n.upper()]
        exact = [
            n
            for n in names
            if catalog.fields("gpus", n)["memory_bytes"].split()[0] == size.group(1)
        ]
        names = stated or exact or names
    return catalog.fields("gpus", names[-1])
