"""Given routes between sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol

from pydantic import Field

from planner.instance._base import Flag, Frozen, Name
from planner.instance.errors import nearest


class Route(Frozen):
    """The way that traffic between two sites takes."""

    source: Name = Field(alias="from")
    target: Name = Field(alias="to")
    via: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    """Sites, hubs or links to pass, in order; with none the link that joins the two sites."""
    both_ways: Flag = True
    """The way back is the same reversed."""


class NamedLink(Protocol):
    """What a route needs to know of a link."""

    @property
    def name(self) -> str:
        """Name of the link."""

    @property
    def source(self) -> str:
        """Site or hub at its ``from`` end."""

    @property
    def target(self) -> str:
        """Site or hub at its ``to`` end."""


class RouteError(ValueError):
    """A route that leads nowhere: where in the route, why, and the nearest right name."""

    def __init__(
        self, reason: str, at: tuple[str | int, ...] = (), suggestion: str | None = None
    ) -> None:
        super().__init__(reason)
        self.reason, self.at, self.suggestion = reason, at, suggestion


def route_links(
    route: Route, sites: Sequence[str], hubs: Sequence[str], links: Sequence[NamedLink]
) -> tuple[tuple[int, bool], ...]:
    """The links of a route in order: index, and whether it is passed from its ``from`` end.

    Raises
    ------
    RouteError
        If the route's ends are no two sites, or what it passes is unknown or not joined.
    """
    for key, end in (("from", route.source), ("to", route.target)):
        if end not in sites:
            raise RouteError(f"no site is named '{end}'", (key,), nearest(end, sites))
    if route.source == route.target:
        raise RouteError(f"the route joins '{route.source}' to itself", ("to",))
    here, passed, path = route.source, {route.source}, []
    for j, name in enumerate((*route.via, route.target)):
        at: tuple[str | int, ...] = ("via", j) if j < len(route.via) else ()
        if name == here:
            continue
        index = _next_link(here, name, {*sites, *hubs}, links, at)
        link = links[index]
        path.append((index, link.source == here))
        here = link.target if link.source == here else link.source
        if here in passed:
            raise RouteError(f"the route passes '{here}' twice", at)
        passed.add(here)
    return tuple(path)


def _next_link(
    here: str,
    name: str,
    nodes: set[str],
    links: Sequence[NamedLink],
    at: tuple[str | int, ...],
) -> int:
    """The link from ``here`` to a site or hub, or of that name."""
    for index, link in enumerate(links):
        ends = {link.source, link.target}
        if here in ends and (ends == {here, name} if name in nodes else link.name == name):
            return index
    if name in nodes:
        raise RouteError(f"no link joins '{here}' and '{name}'", at)
    names = [link.name for link in links]
    if name in names:
        raise RouteError(f"link '{name}' does not leave '{here}'", at)
    close = nearest(name, [*sorted(nodes), *names])
    raise RouteError(f"no site, hub or link is named '{name}'", at, close)
