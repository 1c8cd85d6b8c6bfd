"""Lightning: `Trainer(callbacks=[NumericsCallback()])`, of `lightning.pytorch` or of `pytorch_lightning`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tbnum.arguments import check_optimizer_name
from tbnum.explain.words import count_text
from tbnum.integrations.framework import framework
from tbnum.integrations.recording import OPTIONS, Recording, harmless
from tbnum.monitor import Monitor
from tbnum.observe.caller import warn

__all__ = ["NumericsCallback"]

# Two packages of the same code, whose classes are not the same: a callback of those that the program uses.
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_BASES = [framework("lightning", name).Callback for name in _PACKAGES if name in sys.modules]

# Strategies by the names of their classes, and who takes the step there.
_UNSEEN = {
    "DeepSpeedStrategy": "DeepSpeed's engine scales, clips and steps by itself; its own TensorBoard log can be read",
    "XLAStrategy": "on XLA devices each measured value would break up the compiled step",
    "XLAFSDPStrategy": "on XLA devices each measured value would break up the compiled step",
    "SingleDeviceXLAStrategy": "on XLA devices each measured value would break up the compiled step",
}


class NumericsCallback(*(_BASES or [framework("lightning", *_PACKAGES).Callback])):  # type: ignore[misc]
    """Records the numerics of a training; LightningModule and Trainer stay as they are.

        trainer = Trainer(callbacks=[NumericsCallback()])

    With automatic and manual optimization, one or several optimizers, accumulation, Lightning's own clipping, its
    precision plugins and its DDP strategy, whose ranks share one folder. Its checkpoints hold the monitor's state.
    The scaler is the precision plugin's. The loss is what `training_step` gave, as it went into backward.

    Args:
        logdir: folder of the run. Without it that of the Trainer's TensorBoardLogger, through its writer, or of
            another logger that has one. A resumed training continues in the same record where the folder is the same.
        optimizer_names: where `configure_optimizers` returns several, their names in the record, in that order;
            without it `optimizer0`, `optimizer1` and so on.

        data_ids: "events" or "all" records which samples each step was made of, as `tbnum.wrap` does with `data=`: the
            Trainer's own DataLoader is followed.

    All other options are those of `tbnum.wrap`.

    Costs what `tbnum.wrap` does. Where a training cannot be recorded, a warning says why, and it runs all the same.

    Raises:
        TypeError: an option that `tbnum.wrap` does not have.
        ValueError: a value that `tbnum.wrap` refuses; names of optimizers that are not distinct.
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str] | None = None,
        *,
        optimizer_names: Sequence[str] | None = None,
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
        super().__init__()
        self._recording = Recording(logdir, {**options, **{name: given[name] for name in OPTIONS if name in given}})
        self._optimizer_names = None if optimizer_names is None else _checked_names(optimizer_names)

    @property
    def monitor(self) -> Monitor | None:
        """The monitor of the training that runs; None before and after."""
        return self._recording.monitor

    @harmless
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Optimizers, scaler and loops have their state from the checkpoint by now."""
        strategy = type(trainer.strategy)
        unseen = next((each.__name__ for each in strategy.__mro__ if each.__name__ in _UNSEEN), None)
        if unseen is not None:
            warn(
                f"tbnum records nothing of this training: with Lightning's {strategy.__name__} no hook sees it "
                f"({_UNSEEN[unseen]}). Other strategies are recorded, 'ddp' and 'fsdp' among them."
            )
            return
        if self._recording.logdir is None and trainer.fast_dev_run:
            return  # Lightning turns off loggers and checkpoints as well
        logger = next(filter(_is_tensorboard, trainer.loggers), None)
        folder = getattr(logger, "log_dir", None) or next(
            (each.log_dir for each in trainer.loggers if getattr(each, "log_dir", None)), None
        )
        if self._recording.logdir is None:
            folder = trainer.strategy.broadcast(folder)  # a logger's number of its version may differ between ranks
        self._recording.begin(
            self._optimizers(trainer.optimizers),
            getattr(trainer.precision_plugin, "scaler", None),
            pl_module,
            folder=folder,
            writer=logger.experiment if logger is not None and trainer.is_global_zero else None,
            resumed=trainer.global_step > 0,
            # Of several optimizers Lightning counts each one's steps into the same number.
            step=trainer.global_step if len(trainer.optimizers) == 1 else None,
            loader=trainer.train_dataloader,
            accumulation=(lambda: trainer.accumulate_grad_batches) if pl_module.automatic_optimization else None,
        )

    def _optimizers(self, optimizers: Sequence[Any]) -> Any:
        if len(optimizers) == 1 and self._optimizer_names is None:
            return optimizers[0]
        names = self._optimizer_names or [f"optimizer{number}" for number in range(len(optimizers))]
        if len(names) != len(optimizers):
            count = count_text(len(optimizers), "optimizer")
            raise ValueError(f"optimizer_names has {len(names)} names {list(names)!r} for {count}")
        return dict(zip(names, optimizers, strict=True))

    @harmless
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._recording.end()

    @harmless
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._recording.end(exception)

    def state_dict(self) -> dict[str, Any]:
        return _state(self._recording) or {}

    @harmless
    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Mapping[str, Any]) -> None:
        self._recording.restore(None)  # it may have been written without this callback

    @harmless
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._recording.restore(state_dict)


def _checked_names(names: Sequence[str]) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"optimizer_names is a text, {names!r}: give a list of names, as ['generator', 'critic'].")
    for name in names:
        check_optimizer_name(name)
    if len(set(names)) < len(names):
        raise ValueError(f"optimizer_names has the same name twice: {list(names)!r}.")
    return list(names)


@harmless
def _state(recording: Recording) -> dict[str, Any] | None:
    return recording.state()


def _is_tensorboard(logger: Any) -> bool:
    return any(each.__name__ == "TensorBoardLogger" for each in type(logger).__mro__)
