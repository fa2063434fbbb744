"""Numbers as the calculator writes them, and when two of them are the same. Text and arithmetic, nothing else."""

from __future__ import annotations

NEAR = 0.05
"""Two sources that differ by less are not said to disagree: programs round what they print."""


def whole(value: float) -> str:
    """Return 131072.0 as 131,072, 129791.21 as 129,791 and 12.345678 as 12.3457."""
    if value == int(value) and abs(value) < 1e18:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.6g}"


def percent(fraction: float) -> str:
    """Return 0.3134558 as 31.35%."""
    return f"{fraction * 100:.2f}%"


def teraflops(flops: float) -> str:
    """Return FLOP/s in TFLOP/s: 97.80."""
    tera = flops / 1e12
    return f"{tera:,.2f}" if abs(tera) >= 0.01 or tera == 0 else f"{tera:.3g}"


def peak(flops: float) -> str:
    """Return a peak in TFLOP/s as tables write it: 312, 989.4."""
    return f"{flops / 1e12:,.6g}"


def near(one: float, other: float, within: float = NEAR) -> bool:
    """Say whether two numbers agree."""
    return abs(one - other) <= within * max(abs(one), abs(other))


def times(ratio: float) -> str:
    """Return how many times as much something is: 8x, 1.5x."""
    return f"{round(ratio)}x" if near(ratio, round(ratio), 0.01) else f"{ratio:.2f}x"
