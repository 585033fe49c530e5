"""The picture of the ring in README.md and docs/index.md: python -m docs.draw_ring writes docs/ring.svg."""

from __future__ import annotations

import math
from pathlib import Path

RANKS = 4
STEP = 1
WIDTH, HEIGHT = 620, 360
CENTRE, RADIUS_X, RADIUS_Y = (310, 180), 225, 120
BOX = (150, 96)
COLOURS = ("#2563a8", "#b4530a", "#2e7d4f", "#8a3ffc")  # one an owner; white text on each is readable
INK, PAPER, LINE = "#1b2733", "#ffffff", "#c8d1da"
FONT = "font-family='Helvetica, Arial, sans-serif'"


def place(rank: float) -> tuple[float, float]:
    """Centre of a rank's box: rank 0 at the left top, then clockwise."""
    angle = 2 * math.pi * (rank + 0.5) / RANKS + math.pi
    return CENTRE[0] + RADIUS_X * math.cos(angle) * 1.25, CENTRE[1] + RADIUS_Y * math.sin(angle) * 1.25


def text(x: float, y: float, words: str, *, size: int = 15, colour: str = INK, weight: str = "normal") -> str:
    """Words, centred at x."""
    return (
        f"<text x='{x:.0f}' y='{y:.0f}' text-anchor='middle' {FONT} font-size='{size}' font-weight='{weight}' "
        f"fill='{colour}'>{words}</text>"
    )


def bar(x: float, y: float, words: str, colour: str, *, dashed: bool = False) -> str:
    """What lies on a rank: its queries, or the visiting keys and values."""
    edge = f" stroke='{INK}' stroke-width='2' stroke-dasharray='5 3'" if dashed else ""
    left = x - BOX[0] / 2 + 10
    shape = f"<rect x='{left:.0f}' y='{y:.0f}' width='{BOX[0] - 20}' height='26' rx='4' fill='{colour}'{edge}/>"
    return shape + text(x, y + 18, words, colour=PAPER, size=14)


def box(rank: int) -> str:
    """One rank: its own queries, and the keys and values that visit it in this ring step."""
    x, y = place(rank)
    owner = (rank - STEP) % RANKS
    left, top = x - BOX[0] / 2, y - BOX[1] / 2
    frame = (
        f"<rect x='{left:.0f}' y='{top:.0f}' width='{BOX[0]}' height='{BOX[1]}' rx='8' fill='{PAPER}' "
        f"stroke='{LINE}' stroke-width='2'/>"
    )
    return "\n".join(
        (
            frame,
            text(x, top + 20, f"rank {rank}", weight="bold"),
            bar(x, top + 28, f"Q{rank} stays", COLOURS[rank]),
            bar(x, top + 62, f"K{owner} V{owner} visit", COLOURS[owner], dashed=True),
        )
    )


def arrow(rank: int) -> str:
    """From a rank to the next one."""
    (x0, y0), (x1, y1) = place(rank), place(rank + 1)
    gap_x = math.copysign(BOX[0] / 2 + 8, x1 - x0) if abs(x1 - x0) > abs(y1 - y0) else 0
    gap_y = math.copysign(BOX[1] / 2 + 8, y1 - y0) if not gap_x else 0
    return (
        f"<line x1='{x0 + gap_x:.0f}' y1='{y0 + gap_y:.0f}' x2='{x1 - gap_x:.0f}' y2='{y1 - gap_y:.0f}' "
        f"stroke='{INK}' stroke-width='2.5' marker-end='url(#head)'/>"
    )


def picture() -> str:
    """The SVG."""
    middle = [
        text(CENTRE[0], CENTRE[1] - 22, f"ring step {STEP + 1} of {RANKS}", weight="bold", size=17),
        text(CENTRE[0], CENTRE[1] + 4, "each rank attends to the keys it has"),
        text(CENTRE[0], CENTRE[1] + 26, "while they already travel on"),
    ]
    head = (
        "<defs><marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' markerHeight='7' orient='auto'>"
        f"<path d='M0 0L10 5L0 10z' fill='{INK}'/></marker></defs>"
    )
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' "
            f"aria-label='Four ranks on a ring. Queries stay, keys and values travel to the next rank.'>",
            head,
            f"<rect width='{WIDTH}' height='{HEIGHT}' rx='12' fill='{PAPER}'/>",
            *(arrow(rank) for rank in range(RANKS)),
            *(box(rank) for rank in range(RANKS)),
            *middle,
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    Path(__file__).with_name("ring.svg").write_text(picture(), encoding="ascii")
