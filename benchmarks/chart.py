"""Throughput against concurrency as an SVG, from what `online.py --json` wrote.

    python benchmarks/chart.py result.json docs/throughput.svg --title "SmolLM2 135M, 2 cores"

One line a server, medians of the rounds; both axes are logarithmic, so that equal ratios look equal. The greys are
legible on light and on dark pages.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 44, 48
COLOURS = ("#8f9aa3", "#2e86ab", "#e0a030", "#8a6fb0")
"""Of the servers in their order, but the last, which is the one that the page is about."""
LAST_COLOUR = "#d1495b"

Lines = dict[str, list[tuple[int, float]]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", help="JSON of online.py")
    parser.add_argument("svg", help="file to write")
    parser.add_argument("--title", default="")
    args = parser.parse_args()
    found = json.loads(Path(args.result).read_text())
    index = found["figures"].index("output tok/s")
    lines: Lines = {}
    for entry in found["results"]:
        speed = statistics.median(figures[index] for figures in entry["rounds"])
        lines.setdefault(entry["server"], []).append((entry["clients"], speed))
    Path(args.svg).write_text(chart(lines, args.title))
    return 0


def chart(lines: Lines, title: str) -> str:
    """The document."""
    points = [point for line in lines.values() for point in line]
    clients = sorted({x for x, _ in points})
    least = min(y for _, y in points)
    low = max(tick for tick in _ticks(10 ** math.floor(math.log10(least)), least) if tick <= least)
    high = max(y for _, y in points) * 1.15
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x_of(x: float) -> float:
        span = math.log(clients[-1] / clients[0]) or 1.0
        return LEFT + inner_w * math.log(x / clients[0]) / span

    def y_of(y: float) -> float:
        return TOP + inner_h * (1 - math.log(y / low) / math.log(high / low))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="#7a828a">',
        f"<title>{escape(title)}: output tokens per second by number of clients</title>",
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for tick in _ticks(low, high):
        y = y_of(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{LEFT + inner_w}" stroke="#7a828a" stroke-opacity=".25"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for x in clients:
        parts.append(f'<text x="{x_of(x):.1f}" y="{TOP + inner_h + 20}" text-anchor="middle">{x}</text>')
    parts.append(
        f'<text x="{LEFT + inner_w / 2}" y="{HEIGHT - 8}" text-anchor="middle">clients at the same time</text>'
    )
    parts.append(f'<text x="{LEFT - 52}" y="{TOP - 8}">output tokens/s</text>')
    for i, (name, line) in enumerate(lines.items()):
        last = i == len(lines) - 1
        colour = LAST_COLOUR if last else COLOURS[i % len(COLOURS)]
        path = " ".join(f"{'ML'[j > 0]}{x_of(x):.1f} {y_of(y):.1f}" for j, (x, y) in enumerate(sorted(line)))
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{3.5 if last else 2}"/>')
        parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="4" fill="{colour}"/>' for x, y in line]
        x, y = max(line)
        weight = ' font-weight="600"' if last else ""
        parts.append(
            f'<text x="{x_of(x) + 10:.1f}" y="{y_of(y) + 4:.1f}" fill="{colour}"{weight}>{escape(name)} {y:.0f}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten within the axis."""
    decades = range(round(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**d for d in decades for m in (1, 2, 5) if low <= m * 10.0**d <= high]


if __name__ == "__main__":
    sys.exit(main())
