"""Limits of the address space, and how their effects are recognised."""

from __future__ import annotations

import re
import resource

_MEMORY_TEXT = re.compile(
    r"bad_alloc|MemoryError|out of memory|cannot allocate memory", re.IGNORECASE
)


def set_memory_limit(limit: int | None) -> None:
    """Limit the address space of this process and of those that it starts; None = as far as may be.

    The limit can be raised again, up to the one that the process was started with.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = hard if limit is None else limit
    if hard != resource.RLIM_INFINITY and soft > hard:
        soft = hard
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def fix_memory_limit(limit: int) -> None:
    """Limit the address space for good."""
    set_memory_limit(limit)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (soft, soft))


def has_memory_limit() -> bool:
    """Whether the address space of this process is limited."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def is_memory_text(output: str) -> bool:
    """Whether the last words of a process say that it had no memory left."""
    return _MEMORY_TEXT.search(output) is not None
