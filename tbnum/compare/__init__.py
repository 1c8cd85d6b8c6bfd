"""Two runs compared, from their logs alone: pure, two runs in, a `Difference` out. Loads no torch."""

from tbnum.compare.difference import Difference, diff

__all__ = ["Difference", "diff"]
