"""The cluster as an SVG: sites with the stages that they run, hubs, links with their traffic.

Colours come from the style sheet of the page (classes ``c-*``), so that they follow its scheme.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from planner.report.html.traffic import LinkTraffic
from planner.report.palette import code_of
from planner.report.placement import Column, stage_runs
from planner.report.units import bytes_text, span

CARD = 200
"""Width of a site that is drawn with its stages."""
HEAD = 56
BAR = 20
MOST_CARDS = 8
"""More sites than this are drawn as dots, equal ones with the same letter."""
MOST_BARS = 8
"""More runs of stages than this are drawn as thin bars without words."""
MOST_LABELS = 6
"""More links than this have their number alone."""
MOST_NUMBERS = 40
"""More links than this have no number in the picture."""
STRIP = 128
CARD_AIR, DOT_AIR = 56, 34
"""Least space between sites."""
HUB_SIZE = 40
HUB_AIR = 70
"""Least distance of hubs."""
CHARACTER = 7.2
MARGIN = 16


class Site(NamedTuple):
    """A site as it is drawn; ``replicas`` of every stage are empty where no plan is drawn."""

    name: str
    gpu: str
    num_gpus: int
    used_gpus: int
    replicas: tuple[int, ...]


class _Box(NamedTuple):
    x: float
    y: float
    w: float
    h: float

    def meets(self, other: _Box, space: float = 0) -> bool:
        return (
            self.x < other.x + other.w + space
            and other.x < self.x + self.w + space
            and self.y < other.y + other.h + space
            and other.y < self.y + self.h + space
        )


@dataclass(frozen=True)
class _Drawing:
    """Where everything lies; centres of the nodes by name."""

    width: float
    height: float
    centres: dict[str, tuple[float, float]]
    boxes: dict[str, _Box]


def draw_cluster(
    sites: Sequence[Site], hubs: Sequence[str], links: Sequence[LinkTraffic], dp: int
) -> str:
    """Return the picture of a cluster.

    Parameters
    ----------
    sites, hubs
        The nodes, in the order of the instance.
    links
        What joins them.
    dp
        Replicas of every stage in all sites together; the full length of a bar.
    """
    columns = [Column((site.name,), site.replicas) for site in sites]
    runs = list(stage_runs(columns)) if any(site.replicas for site in sites) else []
    dots = len(sites) > MOST_CARDS
    size = (28.0, 28.0) if dots else (float(CARD), _card_height(runs))
    drawing = _arrange([site.name for site in sites], hubs, size, links)
    parts = [*_links(drawing, links)]
    for hub in hubs:
        parts += _hub(hub, drawing.centres[hub])
    letters = {site.name: letter for letter, group in site_letters(sites) for site in group}
    for i, site in enumerate(sites):
        if dots:
            parts += _dot(site, letters.get(site.name, ""), drawing)
        else:
            parts += _card(site, i, runs, dp, drawing.boxes[site.name])
    body = "\n".join(parts)
    return (
        f'<svg class="cluster" viewBox="0 0 {drawing.width:.0f} {drawing.height:.0f}" role="img" '
        f'style="max-width:{drawing.width:.0f}px">\n'
        f"<title>The sites, what they run, and the links between them</title>\n{body}\n</svg>"
    )


def site_letters(sites: Sequence[Site]) -> list[tuple[str, list[Site]]]:
    """Return the sites that run the same, by the letter of their dots; idle ones have none."""
    groups: dict[tuple[int, ...], list[Site]] = {}
    for site in sites:
        if any(site.replicas):
            groups.setdefault(site.replicas, []).append(site)
    return [(code_of(i), group) for i, group in enumerate(groups.values())]


def is_drawn_as_dots(sites: Sequence[Site]) -> bool:
    """Whether the sites are too many to be drawn with their stages."""
    return len(sites) > MOST_CARDS


def _card_height(runs: Sequence[tuple[int, int, tuple[int, ...]]]) -> float:
    if not runs:
        return HEAD
    return HEAD + (STRIP if len(runs) > MOST_BARS else BAR * len(runs)) + 8


def _arrange(
    names: Sequence[str],
    hubs: Sequence[str],
    size: tuple[float, float],
    links: Sequence[LinkTraffic],
) -> _Drawing:
    """Sites on an ellipse that is as small as keeps them apart, hubs inside it."""
    w, h = size
    dots = w < CARD
    names = _by_hub(names, hubs, links) if len(hubs) > 1 else names
    reach = max(200.0, len(names) * (w + DOT_AIR) / (2 * math.pi))
    radii = {1: (0.0, 0.0), 2: ((w + 280) / 2, 0.0)}.get(
        len(names), (reach, reach) if dots else (w / 2 + 170.0, h / 2 + 90.0)
    )
    while True:
        ring = dict(zip(names, _ring(len(names), radii), strict=True))
        middles = _hub_spots(hubs, ring, radii, h, links)
        nodes = [_around(spot, w, h) for spot in ring.values()]
        nodes += [_around(spot, HUB_SIZE, HUB_SIZE) for spot in middles.values()]
        if not _collide(nodes, DOT_AIR if dots else CARD_AIR, len(names)):
            break
        radii = (radii[0] * (1.05 if dots else 1.02), radii[1] * 1.05)
    label = 60 if dots else 0
    spots = ring | middles
    across, down = ([spot[i] for spot in spots.values()] for i in (0, 1))
    edge = (w / 2 + MARGIN + label, h / 2 + MARGIN + label / 2)
    width = max(across) - min(across) + 2 * edge[0]
    height = max(max(down) - min(down) + 2 * edge[1], 120.0 if hubs else 0.0)
    centre = (edge[0] - min(across), (height - max(down) - min(down)) / 2)
    centres = {name: (centre[0] + x, centre[1] + y) for name, (x, y) in spots.items()}
    boxes = {name: _around(centres[name], w, h) for name in names}
    return _Drawing(width, height, centres, boxes)


def _around(centre: tuple[float, float], w: float, h: float) -> _Box:
    return _Box(centre[0] - w / 2, centre[1] - h / 2, w, h)


def _by_hub(names: Sequence[str], hubs: Sequence[str], links: Sequence[LinkTraffic]) -> list[str]:
    """The sites with those of one hub next to each other."""
    first: dict[str, int] = {}
    for link in links:
        for site, hub in ((link.source, link.target), (link.target, link.source)):
            if hub in hubs and site not in hubs:
                first.setdefault(site, hubs.index(hub))
    return sorted(names, key=lambda name: first.get(name, len(hubs)))


def _hub_spots(
    hubs: Sequence[str],
    ring: Mapping[str, tuple[float, float]],
    radii: tuple[float, float],
    height: float,
    links: Sequence[LinkTraffic],
) -> dict[str, tuple[float, float]]:
    """Hubs between the centre and their sites; evenly spread where that puts them together.

    With a single site of this height they lie below it.
    """
    if len(ring) == 1:
        middle = (len(hubs) - 1) / 2
        return {hub: ((i - middle) * HUB_AIR, height / 2 + HUB_AIR) for i, hub in enumerate(hubs)}
    pull = 0.7 if len(ring) > MOST_CARDS else 0.4
    spots = {}
    for hub in hubs:
        ends = [{link.source, link.target} for link in links if hub in (link.source, link.target)]
        near = [ring[name] for pair in ends for name in pair if name in ring]
        mean = [sum(values) / len(near) for values in zip(*near, strict=True)] or [0.0, 0.0]
        spots[hub] = (pull * mean[0], pull * mean[1])
    if any(math.dist(spots[a], spots[b]) < HUB_AIR for i, a in enumerate(hubs) for b in hubs[:i]):
        inner = (max(HUB_AIR, radii[0] * 0.4), max(HUB_AIR, radii[1] * 0.4))
        spots = dict(zip(hubs, _ring(len(hubs), inner), strict=True))
    return spots


def _ring(count: int, radii: tuple[float, float]) -> list[tuple[float, float]]:
    """Points on an ellipse, clockwise; two lie left and right, four at the corners."""
    start = {2: math.pi, 4: -0.75 * math.pi}.get(count, -math.pi / 2)
    angles = [start + 2 * math.pi * i / max(1, count) for i in range(count)]
    return [(radii[0] * math.cos(a), radii[1] * math.sin(a)) for a in angles]


def _collide(nodes: Sequence[_Box], air: float, sites: int) -> bool:
    """Whether nodes, the sites first, are too near each other; one site never is."""
    return sites > 1 and any(
        a.meets(b, air if i < sites else 4) for i, a in enumerate(nodes) for b in nodes[:i]
    )


def _links(drawing: _Drawing, links: Sequence[LinkTraffic]) -> Iterator[str]:
    taken = list(drawing.boxes.values())
    labels = []
    for link in links:
        ends = [
            _edge(drawing, one, other)
            for one, other in ((link.source, link.target), (link.target, link.source))
        ]
        yield f"<g><title>{escape(_told(link))}</title>"
        yield from _strokes(link, ends[0], ends[1])
        yield "</g>"
        if len(links) > MOST_NUMBERS:
            continue
        lines = _label(link) if len(links) <= MOST_LABELS else []
        box, lines = _place(ends[0], ends[1], lines, taken)
        taken.append(box)
        labels.append((link, box, lines))
    for link, box, lines in labels:
        yield from _tag(link, box, lines)


def _edge(drawing: _Drawing, one: str, other: str) -> tuple[float, float]:
    """Where the line from the centre of a node to that of another leaves the node."""
    (x, y), (u, v) = drawing.centres[one], drawing.centres[other]
    box = drawing.boxes.get(one)
    if box is None or (x, y) == (u, v):
        return x, y
    dx, dy = u - x, v - y
    scale = min(box.w / 2 / abs(dx) if dx else math.inf, box.h / 2 / abs(dy) if dy else math.inf)
    return x + dx * min(1, scale), y + dy * min(1, scale)


def _strokes(
    link: LinkTraffic, start: tuple[float, float], end: tuple[float, float]
) -> Iterator[str]:
    kinds = [k for k, on in (("pp", link.pipeline), ("dp", link.synchronisation)) if on]
    width = 2.5 + 6 * min(1.0, link.utilisation or 0.0)
    length = math.dist(start, end) or 1.0
    across = ((start[1] - end[1]) / length, (end[0] - start[0]) / length)
    if not kinds:
        kinds, width = ["idle"], 1.5
    for i, kind in enumerate(kinds):
        shift = (i - (len(kinds) - 1) / 2) * (width + 2)
        x, y = across[0] * shift, across[1] * shift
        yield (
            f'<line class="c-{kind}" x1="{start[0] + x:.1f}" y1="{start[1] + y:.1f}" '
            f'x2="{end[0] + x:.1f}" y2="{end[1] + y:.1f}" stroke-width="{width:.1f}"/>'
        )


def _label(link: LinkTraffic) -> list[str]:
    there, back = link.directions
    rate = gbps(there.capacity_gbps)
    if back.capacity_gbps != there.capacity_gbps:
        rate = f"{rate} / {gbps(back.capacity_gbps)}"
    lines = [rate, f"{link.delay_us:,.4g} µs one way"]
    if link.sent_bytes:
        lines.append(f"{bytes_text(link.sent_bytes)} sent")
        lines.append(f"busy {100 * (link.utilisation or 0):.3g} %")
    elif not (link.pipeline or link.synchronisation):
        lines.append("unused")
    return lines


def gbps(value: float) -> str:
    """Return a rate given in Gb/s with the unit that suits it."""
    return f"{value / 1000:,.4g} Tb/s" if value >= 1000 else f"{value:,.4g} Gb/s"


def _told(link: LinkTraffic) -> str:
    protocols = sorted({p for d in link.directions for p in d.protocols})
    more = [f"{link.number}: {link.name}", *_label(link), *protocols]
    return ", ".join(more)


def _place(
    start: tuple[float, float],
    end: tuple[float, float],
    lines: list[str],
    taken: Sequence[_Box],
) -> tuple[_Box, list[str]]:
    """A spot on the line where the words, or else the number alone, cover nothing."""
    options = [lines, []] if lines else [[]]
    for words in options:
        w = 34 + CHARACTER * max(map(len, words)) if words else 22.0
        h = 10 + 16.0 * len(words) if words else 22.0
        for t in (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74):
            x, y = start[0] + (end[0] - start[0]) * t, start[1] + (end[1] - start[1]) * t
            box = _Box(x - w / 2, y - h / 2, w, h)
            if not any(box.meets(other, 2) for other in taken):
                return box, words
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    return _Box(x - 11, y - 11, 22, 22), []


def _tag(link: LinkTraffic, box: _Box, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield (
            f'<rect class="c-label" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.w:.1f}" '
            f'height="{box.h:.1f}" rx="6"/>'
        )
    x = box.x + (13 if lines else 11)
    y = box.y + (14 if lines else 11)
    yield f'<circle class="c-number" cx="{x:.1f}" cy="{y:.1f}" r="9"/>'
    yield _text(x, y + 4, str(link.number), "c-count")
    for i, words in enumerate(lines):
        yield _text(box.x + 26, box.y + 18 + 16 * i, words, "c-small")


def _hub(name: str, centre: tuple[float, float]) -> Iterator[str]:
    x, y = centre
    yield f"<g><title>hub {escape(name)}</title>"
    yield f'<circle class="c-hub" cx="{x:.1f}" cy="{y:.1f}" r="16"/>'
    yield _text(x, y + 32, _cut(name, 22), "c-middle")
    yield _text(x, y + 4, "hub", "c-count c-inhub")
    yield "</g>"


def _dot(site: Site, letter: str, drawing: _Drawing) -> Iterator[str]:
    x, y = drawing.centres[site.name]
    kind = "c-on" if letter else "c-off"
    away = drawing.height / 2
    yield f"<g><title>{escape(_site_told(site))}</title>"
    yield f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="14"/>'
    yield _text(x, y + 4, letter, "c-count")
    below = y >= away
    yield _text(x, y + (28 if below else -19), _cut(site.name, 10), "c-tiny c-middle")
    yield "</g>"


def _site_told(site: Site) -> str:
    return f"{site.name}: {site.used_gpus:,} of {site.num_gpus:,} {site.gpu} in use"


def _card(
    site: Site,
    index: int,
    runs: Sequence[tuple[int, int, tuple[int, ...]]],
    dp: int,
    box: _Box,
) -> Iterator[str]:
    yield f"<g><title>{escape(_site_told(site))}</title>"
    yield (
        f'<rect class="c-card" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.w}" '
        f'height="{box.h:.1f}" rx="8"/>'
    )
    yield _text(box.x + 12, box.y + 22, _cut(site.name, 22), "c-name")
    gpus = f"{site.used_gpus:,} of {site.num_gpus:,} {_cut(site.gpu, 12)}"
    yield _text(box.x + 12, box.y + 42, gpus, "c-small")
    yield "</g>"
    y = box.y + HEAD
    room = box.w - 24
    if len(runs) > MOST_BARS:
        each = STRIP / (runs[-1][1] + 1)
        yield (
            f'<rect class="c-lane" x="{box.x + 12:.1f}" y="{y:.1f}" width="{room:.1f}" '
            f'height="{STRIP}" rx="2"/>'
        )
        for first, last, replicas in runs:
            length = room * replicas[index] / dp
            stages = _stages(first, last, replicas[index])
            yield (
                f'<rect class="c-bar" x="{box.x + 12:.1f}" y="{y + each * first:.2f}" '
                f'width="{length:.1f}" height="{each * (last - first + 1) * 0.9:.2f}">'
                f"<title>{escape(stages)}</title></rect>"
            )
        return
    for i, (first, last, replicas) in enumerate(runs):
        top = y + BAR * i
        length = room * replicas[index] / dp
        yield (
            f'<rect class="c-lane" x="{box.x + 12:.1f}" y="{top:.1f}" width="{room:.1f}" '
            f'height="{BAR - 4}" rx="2"/>'
        )
        yield (
            f'<rect class="c-bar" x="{box.x + 12:.1f}" y="{top:.1f}" width="{length:.1f}" '
            f'height="{BAR - 4}" rx="2"/>'
        )
        yield _text(box.x + 18, top + 12.5, _stages(first, last, replicas[index]), "c-tiny c-onbar")


def _stages(first: int, last: int, replicas: int) -> str:
    word = "stage" if first == last else "stages"
    count = f"× {replicas:,}" if replicas else "none here"
    return f"{word} {span(first, last)} {count}"


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
