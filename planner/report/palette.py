"""Colours, patterns and marks of the pictures, in the same order everywhere.

The colours are those of Okabe and Ito, which colour-blind readers tell apart; the light ones come
first, since dark words stand on them.  Every colour has a pattern and a mark of its own, so that
nothing rests on colour alone.
"""

from __future__ import annotations

COLOURS = (
    *("#56b4e9", "#e69f00", "#009e73", "#cc79a7"),
    *("#d55e00", "#0072b2", "#f0e442", "#999999"),
)
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "oo", "||")
"""Patterns in the notation of matplotlib."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2", "6 2 1 2 1 2")
"""Dash patterns of lines, in pixels."""


def code_of(index: int) -> str:
    """The letter of a contender in a phase diagram, or of a group of sites."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    head, last = divmod(index, len(letters))
    return (letters[head - 1] if head else "") + letters[last]
