"""What TensorBoard imports at its start.

An error in this module would end TensorBoard itself, so it imports nothing but what TensorBoard has already loaded, and
turns every failure of the plugin into one logged line.
"""

from __future__ import annotations

import argparse

from tensorboard.plugins import base_plugin
from tensorboard.util import tb_logging

__all__ = ["TbnumLoader"]


class TbnumLoader(base_plugin.TBLoader):
    """Loads the plugin, or leaves the tab out where that fails."""

    def define_flags(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument_group("tbnum plugin").add_argument(
            "--tbnum_map",
            metavar="COLUMN=TAG",
            action="append",
            help="Numerics tab, for runs that never used tbnum: the scalar that is one of its columns, as in"
            " loss_scale=amp/scale. May be given several times.",
        )

    def fix_flags(self, flags: argparse.Namespace) -> None:
        """A mapping that cannot be meant ends TensorBoard's start with one line, as its own flags do."""
        if not getattr(flags, "tbnum_map", None):
            return
        try:
            from tbnum.log.tags import checked_mapping
        except Exception:
            return  # `load` will say what is wrong with the installation
        try:
            checked_mapping(flags.tbnum_map)
        except ValueError as error:
            raise base_plugin.FlagsError(f"--tbnum_map: {error}") from None

    def load(self, context: base_plugin.TBContext) -> base_plugin.TBPlugin | None:
        try:
            from tensorboard_plugin_tbnum.plugin import TbnumPlugin

            return TbnumPlugin(context)
        except Exception as error:
            tb_logging.get_logger().error(
                "tbnum: no Numerics tab, because its plugin did not load (%s: %s)."
                " Install it again into this environment: pip install --force-reinstall --no-deps tbnum",
                type(error).__name__,
                error,
            )
            return None
