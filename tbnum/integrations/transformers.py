"""Transformers: `Trainer(..., callbacks=[NumericsCallback()])`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from tbnum.integrations.accelerate import check_supported
from tbnum.integrations.framework import framework
from tbnum.integrations.recording import OPTIONS, Recording, harmless
from tbnum.monitor import Monitor
from tbnum.observe.caller import warn

__all__ = ["NumericsCallback"]

framework("transformers", "transformers")

from transformers.integrations import TensorBoardCallback  # noqa: E402  (its version is checked first)
from transformers.trainer_callback import CallbackHandler, ExportableState, TrainerCallback  # noqa: E402


class NumericsCallback(TrainerCallback, ExportableState):
    """Records the numerics of a training; model and Trainer stay as they are.

        trainer = Trainer(model, args, train_dataset=data, callbacks=[NumericsCallback()])

    With and without mixed precision, with accumulation, clipping, DDP and FSDP. Its state is in each checkpoint's
    `trainer_state.json`, so that `train(resume_from_checkpoint=...)` continues in the same record.

    Args:
        logdir: folder of the run. Without it that of the Trainer's TensorBoardCallback, through its writer, and
            `<output_dir>/tbnum` where there is none or several processes train. TensorBoardCallback names its folder
            by the time, so a training that is resumed continues in the folder of the one before, if that is in the same
            `output_dir`.

        data_ids: "events" or "all" records which samples each step was made of, as `tbnum.wrap` does with `data=`: the
            Trainer's own DataLoader is followed.

    All other options are those of `tbnum.wrap`.

    Costs what `tbnum.wrap` does. Where a training cannot be recorded, a warning says why, and it runs all the same.

    Raises:
        TypeError: an option that `tbnum.wrap` does not have.
        ValueError: a value that `tbnum.wrap` refuses.
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str] | None = None,
        *,
        tensor_interval: int | None = 50,
        histogram_interval: int | None = 1000,
        checksums: bool = True,
        activations: bool | Sequence[str] = False,
        scalar_interval: int | None = 10,
        tensorboard_tensors: bool = False,
        max_tensor_bytes: int = 256_000_000,
        flush_seconds: float = 2.0,
        ranks: str | int = "all",
        data_ids: str | None = None,
        config: Mapping[str, Any] | None = None,
        verbose: bool | None = None,
        **options: Any,
    ) -> None:
        given = locals()
        self._recording = Recording(logdir, {**options, **{name: given[name] for name in OPTIONS if name in given}})
        self._has_begun = False
        self._output_dir = ""
        self._folder_before: str | None = None  # of the training that is resumed
        self.saved: Any = None  # set where the Trainer restores callbacks; on_train_begin reads it from its state

    @property
    def monitor(self) -> Monitor | None:
        """The monitor of the training that runs; None before and after."""
        return self._recording.monitor

    def state(self) -> dict[str, Any]:
        """Of this callback, for the Trainer's checkpoint: what JSON can hold, else the Trainer could not write it."""
        arguments = {"logdir": self._recording.logdir, **self._recording.options}
        saved = _state(self._recording)
        if saved is not None and self.monitor is not None:
            saved = {**saved, "folder": os.path.relpath(self.monitor.logdir, self._output_dir)}
        state = {"args": arguments, "attributes": {"saved": saved}}
        plain: dict[str, Any] = json.loads(json.dumps(state, default=str))
        return plain

    @harmless
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A checkpoint that was written without this callback lacks it here, and the Trainer would fail to write one.
        saved = state.stateful_callbacks.setdefault(type(self).__name__, {"attributes": {}})
        self._has_begun = False
        self._recording.end()  # the last training may have ended in an exception
        ours = saved[0] if isinstance(saved, list) else saved
        monitor_state = dict(ours["attributes"].get("saved") or {})
        self._output_dir = args.output_dir
        self._folder_before = _within(args.output_dir, monitor_state.pop("folder", None))
        self._recording.restore(monitor_state or None)

    @harmless
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before the first epoch every callback's `on_train_begin` has run: TensorBoard's opens its writer there."""
        if self._has_begun:
            return
        self._has_begun = True
        optimizer = kwargs["optimizer"]
        try:
            check_supported(getattr(getattr(optimizer, "accelerator_state", None), "distributed_type", None))
        except ValueError as error:
            warn(f"tbnum records nothing of this training: {error}")
            return
        folder = os.path.join(args.output_dir, "tbnum", state.trial_name or "")
        # Its folder is named by the time, which the other processes do not know: they all write elsewhere then.
        its_folder_may_do = args.world_size == 1 or self._recording.logdir is not None
        writer = _tensorboard_writer(self) if its_folder_may_do else None
        resumed = state.global_step > 0
        if resumed and self._folder_before is not None and self._recording.logdir is None:
            folder, writer = self._folder_before, None
        self._recording.begin(
            optimizer,
            getattr(optimizer, "scaler", None),
            kwargs["model"],
            folder=folder,
            writer=writer,
            resumed=resumed,
            step=state.global_step,
            loader=kwargs.get("train_dataloader"),
        )

    @harmless
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_training_stop and self.monitor is not None:
            self.monitor.flush()  # TensorBoard's callback may close its writer before this one's on_train_end

    @harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._recording.end()


@harmless
def _state(recording: Recording) -> dict[str, Any] | None:
    return recording.state()


def _within(output_dir: str, folder: Any) -> str | None:
    """The folder of the training before, if it is still there. Outside of `output_dir` it is another run's."""
    if not isinstance(folder, str) or os.path.isabs(folder) or folder.split(os.sep)[0] == os.pardir:
        return None
    path = os.path.join(output_dir, folder)
    return path if os.path.isdir(path) else None


def _tensorboard_writer(callback: NumericsCallback) -> Any:
    """The writer of the Trainer's TensorBoardCallback, None where there is none.

    The Trainer shows its callbacks to none of them: they are in the handler, which calls them.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        handler = frame.f_locals.get("self")
        if isinstance(handler, CallbackHandler) and callback in handler.callbacks:
            writers = [each.tb_writer for each in handler.callbacks if isinstance(each, TensorBoardCallback)]
            return next((writer for writer in writers if writer is not None), None)
        frame = frame.f_back
    return None
