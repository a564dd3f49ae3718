"""SVG charts, written by hand: bars for one case of several systems, lines over time. Readable on light and dark."""

import math
from html import escape

COLORS = {
    "outbox": "#2f6fdf", "plain": "#8a8f98", "handwritten": "#c77d0a", "pgmq": "#1f9d6b", "pgmq-delete": "#7fc97f",
    "pgq": "#8e5bd0", "graphile-worker": "#d2527f", "pg-boss": "#b0413e",
}  # fmt: skip
STYLE = (
    "<style>text{font:12px system-ui,sans-serif;fill:#444}.t{font-weight:600}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}}</style>"
)
LABELS, PLOT, ROW = 150, 420, 22


def number(value):
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def svg(width, height, title, parts):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    body = "".join(parts)
    return f'{head} role="img" aria-label="{escape(title)}">{STYLE}<text class="t" x="8" y="18">{escape(title)}</text>{body}</svg>\n'


def bars(title, rows):
    """`rows`: (system, label, (median, lowest, highest)); the whisker is the spread."""
    top = max(spread[2] for _, _, spread in rows) or 1
    parts = []
    for index, (system, label, (middle, low, high)) in enumerate(rows):
        y = 32 + index * ROW
        x = [LABELS + value / top * PLOT for value in (middle, low, high)]
        color = COLORS.get(system, "#888")
        parts.append(f'<text x="{LABELS - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>')
        parts.append(f'<rect x="{LABELS}" y="{y}" width="{max(1, x[0] - LABELS):.1f}" height="15" rx="2" fill="{color}"/>')
        parts.append(f'<path d="M{x[1]:.1f} {y + 7.5}H{x[2]:.1f}" stroke="#888" stroke-width="2"/>')
        parts.append(f'<text x="{x[2] + 6:.1f}" y="{y + 12}">{number(middle)}</text>')
    return svg(LABELS + PLOT + 90, 40 + len(rows) * ROW, title, parts)


def lines(title, unit, series):
    """`series`: {(system, label): [(second, value)]}; the upper scale is logarithmic if values differ much."""
    points = [point for line in series.values() for point in line]
    right = max(x for x, _ in points) or 1
    low, high = min(y for _, y in points), max(y for _, y in points)
    log = low > 0 and high / low > 20
    scale = math.log10 if log else lambda y: y
    bottom = math.floor(math.log10(low)) if log else 0
    top = math.ceil(math.log10(high)) if log else high * 1.05 or 1
    place = lambda x, y: (70 + x / right * 480, 210 - (scale(y) - bottom) / (top - bottom) * 170)  # noqa: E731
    marks = [10**e for e in range(bottom, top + 1)] if log else [high * i / 4 for i in range(5)]
    parts = []
    for mark in marks:
        _, y = place(0, mark)
        parts.append(f'<path d="M70 {y:.1f}H550" stroke="#8884"/>')
        parts.append(f'<text x="64" y="{y + 4:.1f}" text-anchor="end">{number(mark)}</text>')
    for second in (0, right / 2, right):
        parts.append(f'<text x="{place(second, marks[-1])[0]:.1f}" y="228" text-anchor="middle">{second:.0f} s</text>')
    for index, ((system, label), line) in enumerate(series.items()):
        path = " L".join("{:.1f} {:.1f}".format(*place(x, y)) for x, y in line)
        color = COLORS.get(system, "#888")
        parts.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<rect x="565" y="{44 + index * 20}" width="10" height="10" rx="2" fill="{color}"/>')
        parts.append(f'<text x="580" y="{53 + index * 20}">{escape(label)}</text>')
    return svg(720, 240, f"{title} ({unit})", parts)
