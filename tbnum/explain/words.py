"""Numbers as a person reads them. A tiny scale is never shown as zero."""

from __future__ import annotations

import math
import re
import time
from typing import Any

__all__ = [
    "as_float",
    "clock_text",
    "count_text",
    "duration_text",
    "number_text",
    "scale_text",
    "share_text",
    "terminal_text",
]


def as_float(value: Any) -> float:
    """`value` as a float; NaN, which is "unknown", for None and for what is no number."""
    if value is None or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def number_text(value: float) -> str:
    """Four significant digits: `2.531`, `1.2e-07`, `NaN`, `inf`."""
    if math.isnan(value):
        return "NaN"
    return f"{value:.4g}"


def scale_text(scale: float) -> str:
    """A loss scale: `512`, `2^16`, `2^-10`, `1.16e-10 (2^-33)`, and the digits where it is no power of two."""
    if scale == 0:
        return "0 (underflowed)"  # float32 ends at 2^-149
    if not math.isfinite(scale) or scale < 0:
        return number_text(scale)
    mantissa, exponent = math.frexp(scale)
    power = exponent - 1 if mantissa == 0.5 else None
    if power is None:
        return f"{scale:.3g}" if scale < 1 else f"{scale:.7g}"
    if 0 <= power < 10:
        return str(int(scale))
    return f"2^{power}" if power >= -10 else f"{scale:.3g} (2^{power})"


def count_text(count: int, one: str, many: str | None = None) -> str:
    """`1 step`, `2,000 steps`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def share_text(part: int, whole: int) -> str:
    """A share in percent. Neither `0 %` for something nor `100 %` for less than all."""
    if whole == 0:
        return "0 %"
    percent = 100 * part / whole
    if 0 < percent < 0.01:
        return "<0.01 %"
    if 99.99 < percent < 100:
        return ">99.99 %"
    digits = 0 if percent in (0, 100) else 2 if percent < 1 or percent > 99.9 else 1
    return f"{percent:.{digits}f} %"


def duration_text(seconds: float) -> str:
    """`0.2 s`, `12 s`, `3 min 5 s`, `2 h 10 min`; `?` for what is no time (clocks are set back, logs are damaged)."""
    if not 0 <= seconds < math.inf:
        return "?"
    if seconds < 9.95:
        return f"{round(seconds, 1 if seconds >= 0.1 else 2):g} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def clock_text(wall_time: float, form: str = "%H:%M:%S") -> str:
    """Seconds since the epoch as the time here; `?` for what is none."""
    try:
        return time.strftime(form, time.localtime(wall_time))
    except (ValueError, OverflowError, OSError):  # NaN; infinity; a year that the machine's clock does not reach
        return "?"


def terminal_text(text: str) -> str:
    """On one line, control characters written out: a run's name or a note in it is not to steer the terminal."""
    line = re.sub(r"[\t\r\n]", " ", text)
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)
