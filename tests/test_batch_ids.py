"""`wrap(..., data=loader)` and `log_batch`: the record has the samples of each step, and training is as without."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import tbnum

SAMPLES = 48


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Sample `i` begins with `i`, so that a batch shows its ids. One of them is far too large for float16."""

    def __init__(self, bad: int = -1) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(4, generator=torch.Generator().manual_seed(index))
        x[0] = index
        target = 1e9 if index == self.bad else float(x[1])
        return x, torch.tensor([target])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.norm(x)).half().float()


def only_run(folder: Path) -> Any:
    (run,) = tbnum.read(folder).values()
    return run


def train(
    folder: Path | None, loader: DataLoader[Any], *, steps: int = 30, accumulate: int = 2, **options: Any
) -> tuple[list[list[int]], list[Tensor]]:
    """The ids of each step as the loop knows them, and the weights at the end."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    monitor = None
    if folder is not None:
        monitor = tbnum.wrap(optimizer, scaler, model=model, logdir=folder, **options)
    truth: list[list[int]] = []
    torch.manual_seed(1)
    held: list[int] = []
    while len(truth) < steps:
        for at, (x, y) in enumerate(loader):
            held += x[:, 0].int().tolist()
            loss = (model(x) - y).square().mean() / accumulate
            scaler.scale(loss).backward()
            if at % accumulate == accumulate - 1:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                truth.append(held)
                held = []
    if monitor is not None:
        monitor.close()
    return truth, [value.clone() for value in model.state_dict().values()]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_record_has_the_ids_of_each_step_and_training_is_bitwise_the_same(workers: int, tmp_path: Path) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Points(), batch_size=6, shuffle=True, num_workers=workers)

    bare, weights = train(None, loader())
    followed = loader()
    truth, weights_with_it = train(tmp_path, followed, data=followed)
    assert truth == bare
    assert all(torch.equal(one, other) for one, other in zip(weights, weights_with_it, strict=True))
    run = only_run(tmp_path)
    assert [run.batch(step).tolist() for step in range(len(truth))] == truth
    hashes = run.steps["batch_hash"]
    assert hashes.dtype == np.uint64 and len(set(hashes.tolist())) == len({tuple(ids) for ids in truth})


def test_the_event_of_a_skip_names_the_samples_of_a_planted_batch(tmp_path: Path) -> None:
    loader = DataLoader(Points(bad=17), batch_size=6, shuffle=True, num_workers=2)
    truth, _ = train(tmp_path, loader, data=loader)
    run = only_run(tmp_path)
    skips = [event for event in run.events if event.kind == "skip"]
    assert skips and all(17 in event.data["samples"] for event in skips)
    assert [event.data["samples"] for event in skips] == [truth[event.step] for event in skips]
    assert all(17 in run.batch(event.step) for event in skips)
    named = [event for event in skips if event.cause == "bad_batch"]
    assert named and all(f"The samples of the step were {truth[event.step][0]}, " in event.message for event in named)


def test_a_spike_of_the_loss_names_the_samples_of_its_peak(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path) as monitor:
        for step in range(300):
            monitor.log_batch([3 * step, 3 * step + 1])
            ((model(torch.randn(8, 4)) - 1).square().mean() * (100 if step == 200 else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    (spike,) = [event for event in only_run(tmp_path).events if event.kind == "loss_spike"]
    assert spike.data["samples"] == [600, 601]
    assert spike.message.endswith("The samples of step 200 were 600, 601.")


def test_ids_that_the_loop_logs_itself(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path) as monitor:
        for step in range(5):
            if step != 3:
                monitor.log_batch([10 * step, 10 * step + 1])
                monitor.log_batch(torch.tensor([7]))
            model(torch.randn(3, 2)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with pytest.raises(TypeError, match=r"log_batch\(\) takes whole numbers.*'a'"):
            monitor.log_batch(["a"])
    run = only_run(tmp_path)
    found = [run.batch(step) for step in range(5)]
    assert [None if ids is None else ids.tolist() for ids in found] == [
        [0, 1, 7], [10, 11, 7], [20, 21, 7], None, [40, 41, 7],
    ]  # fmt: skip
    assert run.steps["batch_hash"][3] == 0


def test_a_run_without_ids_has_none_and_no_column_of_them(tmp_path: Path) -> None:
    train(tmp_path, DataLoader(Points(), batch_size=6))
    run = only_run(tmp_path)
    assert run.batch(0) is None and "batch_hash" not in run.steps


def test_of_large_steps_all_ids_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    class Many(Points):
        def __len__(self) -> int:
            return 400

    loader = DataLoader(Many(), batch_size=100, shuffle=True)
    for name, options in (("events", {}), ("all", {"data_ids": "all"})):
        truth, _ = train(tmp_path / name, loader, steps=60, accumulate=1, data=loader, **options)
        run = only_run(tmp_path / name)
        found = [run.batch(step) for step in range(len(truth))]
        assert all(ids is None or ids.tolist() == truth[step] for step, ids in enumerate(found))
        known = sum(ids is not None for ids in found)
        assert known == len(truth) if name == "all" else 32 <= known < len(truth)
        assert (run.steps["batch_hash"] != 0).all()


def test_what_cannot_be_followed_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(4))

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for data, options, error in (
        (DataLoader(Stream()), {}, ValueError),
        ([1, 2], {}, TypeError),
        (DataLoader(Points()), {"data_ids": "some"}, ValueError),
    ):
        with pytest.raises(error):
            tbnum.wrap(optimizer, model=model, logdir=tmp_path / "run", data=data, **options)
    assert not (tmp_path / "run").exists() and not optimizer._optimizer_step_pre_hooks


def test_a_resumed_run_has_the_ids_of_the_steps_that_count(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)

    def session(first: int, last: int, ids: int, state: Any = None) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        with tbnum.wrap(optimizer, model=model, logdir=tmp_path) as monitor:
            if state is not None:
                monitor.load_state_dict(state)
            kept = None
            for step in range(first, last):
                monitor.log_batch([ids + step])
                model(torch.randn(3, 2)).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 5:
                    kept = monitor.state_dict()
            return kept

    state = session(0, 10, 100)
    session(6, 9, 200, state)
    run = only_run(tmp_path)
    assert [int(run.batch(step)[0]) for step in run.steps["step"]] == [*range(100, 106), *range(206, 209)]


# -- loops of frameworks -----------------------------------------------------------------------------------------------


def test_a_loader_that_accelerate_prepares_afterwards(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    loader = DataLoader(Points(), batch_size=6, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    monitor = tbnum.wrap(optimizer, model=model, logdir=tmp_path, data=loader)
    model, optimizer, prepared = accelerator.prepare(model, optimizer, loader)
    truth = []
    for _ in range(3):
        for x, y in prepared:
            accelerator.backward((model(x) - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            truth.append(x[:, 0].int().tolist())
    first = accelerator.skip_first_batches(prepared, 3)
    for x, y in first:
        accelerator.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        truth.append(x[:, 0].int().tolist())
    monitor.close()
    run = only_run(tmp_path)
    assert [run.batch(step).tolist() for step in range(len(truth))] == truth


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    truth: list[list[int]] = []
    train_loader = DataLoader(Points(), batch_size=6, shuffle=True, num_workers=2)
    validation = DataLoader(Points(), batch_size=6)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y = batch
            truth.append(x[:, 0].int().tolist())
            return (self.net(x) - y).square().mean()

        def validation_step(self, batch: Any, index: int) -> None:
            self.net(batch[0])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1e-2)
            self.monitor = tbnum.wrap(optimizer, model=self, logdir=tmp_path, data=train_loader)
            return optimizer

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path / "root",
    )  # fmt: skip
    trainer.fit(module, train_loader, validation)
    module.monitor.close()
    run = only_run(tmp_path)
    assert [run.batch(step).tolist() for step in range(len(truth))] == truth
    assert math.isfinite(run.steps["loss"][-1])


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tbnum.integrations.transformers import NumericsCallback

    truth: list[list[int]] = []

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            truth.append(x[:, 0].int().tolist())
            return {"loss": (self.net(x) - labels).square().mean()}

    class Rows(Points):
        def __getitem__(self, index: int) -> Any:  # type: ignore[override]
            x, y = super().__getitem__(index)
            return {"x": x, "labels": y}

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=6, num_train_epochs=3, use_cpu=True,
        report_to=[], save_strategy="no", gradient_accumulation_steps=2, disable_tqdm=True,
    )  # fmt: skip
    callback = NumericsCallback(logdir=tmp_path / "run", data_ids="events")
    transformers.Trainer(Wrapped(), arguments, train_dataset=Rows(), callbacks=[callback]).train()
    run = only_run(tmp_path / "run")
    found = [run.batch(step) for step in run.steps["step"].tolist()]
    pairs = [first + second for first, second in zip(truth[::2], truth[1::2], strict=True)]
    assert [None if ids is None else ids.tolist() for ids in found] == pairs
