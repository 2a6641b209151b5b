"""From a template and what it shows to one HTML file without references to anything outside."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from planner import __version__
from planner.report.units import bytes_text, duration, exact_seconds, percent, span


def render_page(template: str, **context: Any) -> str:
    """Return the page of a template of this package.

    Everything that is not :class:`markupsafe.Markup` is shown as text.
    """
    environment = Environment(
        loader=PackageLoader("planner.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "bytes": bytes_text,
        "duration": duration,
        "exact_seconds": exact_seconds,
        "percent": percent,
    }
    environment.globals |= {
        "asset": _asset,
        "json_data": _json_data,
        "span": span,
        "version": __version__,
    }
    return environment.get_template(template).render(context)


def _asset(name: str) -> Markup:
    """A style sheet or a script of this package, to stand inside its element."""
    return Markup((files("planner.report.html") / "templates" / name).read_text(encoding="utf-8"))


def _json_data(value: Any) -> Markup:
    """JSON that no text in it can leave: ``<``, ``>`` and ``&`` are escaped inside its strings."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
