"""What TensorBoard imports at its start.

An error in this module would end TensorBoard itself, so it imports nothing but what TensorBoard has already loaded, and
turns every failure of the plugin into one logged line.
"""

from __future__ import annotations

from tensorboard.plugins import base_plugin
from tensorboard.util import tb_logging

__all__ = ["TbnumLoader"]


class TbnumLoader(base_plugin.TBLoader):
    """Loads the plugin, or leaves the tab out where that fails."""

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
