"""Accelerate and Transformers train the model of `tests.ranks` sharded, on CPUs, for `test_integrations_fsdp.py`.

    python -m torch.distributed.run --standalone --nproc-per-node=2 -m tests.sharded_frameworks FOLDER

Accelerate shards on accelerators alone: on CPUs it leaves FSDP's settings aside and takes DDP. What it asks for on the
way is set by hand here; the sharding, its clipping and its checkpoints are its own code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType
from torch import Tensor
from transformers import Trainer, TrainingArguments

from tbnum.integrations.accelerate import wrap
from tbnum.integrations.transformers import NumericsCallback
from tests import ranks

MICRO_BATCHES = 2

_as_accelerate_has_it = AcceleratorState.__init__


def _sharding_on_cpus(self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
    _as_accelerate_has_it(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if fsdp_plugin is not None:
        self.fsdp_plugin = fsdp_plugin
        for state in (self, PartialState()):
            state.distributed_type = DistributedType.FSDP
            state.device = torch.device("cpu")  # it says cpu:0, which FSDP1 takes for another


def accelerated(folder: Path, version: int, **settings: Any) -> None:
    plugin = FullyShardedDataParallelPlugin(fsdp_version=version, **settings)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, gradient_accumulation_steps=MICRO_BATCHES)
    model: Any = ranks.Net()
    model, optimizer = accelerator.prepare(model, ranks.sgd(model))
    with wrap(accelerator, optimizer, model, logdir=folder, tensor_interval=1):
        for x in ranks.data():
            for micro in ranks.share(x).chunk(MICRO_BATCHES):
                with accelerator.accumulate(model):
                    accelerator.backward(ranks.loss_of(model(micro)))
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), ranks.MAX_NORM)
                    optimizer.step()
                    optimizer.zero_grad()
        if version == 2:  # of FSDP1 a checkpoint's optimizer ends in a segmentation fault on CPUs, without tbnum too
            accelerator.save_state(str(folder / "checkpoint"))


class TellsItsLoss(ranks.Net):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"loss": ranks.loss_of(super().forward(x))}


class InOrder(Trainer):
    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]


def trained(folder: Path, version: int, **settings: Any) -> None:
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        use_cpu=True,
        fsdp="full_shard",
        fsdp_config={"version": version, "fsdp_version": version, **settings},
        max_steps=ranks.STEPS,
        per_device_train_batch_size=ranks.SIZE // dist.get_world_size() // MICRO_BATCHES,
        gradient_accumulation_steps=MICRO_BATCHES,
        max_grad_norm=ranks.MAX_NORM,
        optim="sgd",
        optim_args="momentum=0.9",
        learning_rate=0.05,
        lr_scheduler_type="constant",
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    rows: Any = [{"x": row} for row in torch.cat(ranks.data())]
    recording = NumericsCallback(logdir=folder, tensor_interval=1)
    InOrder(TellsItsLoss(), arguments, train_dataset=rows, callbacks=[recording]).train()


_NOT_FROM_ONE_RANK = {"sync_module_states": False}  # which takes an accelerator
TRAININGS: list[tuple[str, Callable[..., None], int, dict[str, Any]]] = [
    ("accelerate", accelerated, 2, {}),
    ("accelerate", accelerated, 1, {"use_orig_params": True, **_NOT_FROM_ONE_RANK}),
    ("transformers", trained, 2, {}),
    ("transformers", trained, 1, {"cpu_ram_efficient_loading": False, **_NOT_FROM_ONE_RANK}),
]


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    AcceleratorState.__init__ = _sharding_on_cpus  # type: ignore[method-assign]
    for kind, train, version, settings in TRAININGS:
        train(folder / f"{kind}_fsdp{version}", version, **settings)
        for state in (AcceleratorState, GradientState, PartialState):  # kept in the process
            state._reset_state()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
