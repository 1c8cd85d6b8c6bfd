"""Lightning's Trainer, recorded by its callback, beside a plain loop that does the same."""

from __future__ import annotations

import copy
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import DataLoader

import tbnum
from tests.loops import Half, batches, train

pl = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402
from lightning.pytorch.strategies import SingleDeviceStrategy  # noqa: E402

from tbnum.integrations.lightning import NumericsCallback  # noqa: E402

IGNORED = ("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")  # the framework's own
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings(*IGNORED)]

STEPS, ACCUMULATE, MAX_NORM = 12, 2, 0.5
GOOD = batches(STEPS * ACCUMULATE)
DATA = batches(STEPS * ACCUMULATE, bad=[9])  # overflows, and only a scaler lives with that


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = Half()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.net(batch).square().mean()
        self.log("their_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Two(Module):
    """Manual optimization of two networks, each by an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = Half()

    def training_step(self, batch: Tensor, batch_idx: int) -> None:  # type: ignore[override]
        for optimizer, net in zip(self.optimizers(), (self.net, self.other), strict=True):
            optimizer.zero_grad()
            self.manual_backward(net(batch).square().mean())
            self.clip_gradients(optimizer, gradient_clip_val=MAX_NORM, gradient_clip_algorithm="norm")
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9) for net in (self.net, self.other)]


def scaler_for_tests() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=4)


def trainer(tmp_path: Path, callbacks: Sequence[Any] = (), scaler: Any = None, **settings: Any) -> Any:
    plugins = [MixedPrecision("16-mixed", "cpu", scaler=scaler)] if scaler is not None else []
    settings = {
        "accumulate_grad_batches": ACCUMULATE,
        "gradient_clip_val": MAX_NORM,
        "logger": False,
        "max_epochs": 1,
        **settings,
    }
    return pl.Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=tmp_path,
        callbacks=list(callbacks),
        plugins=plugins,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )


def fit(trainer: Any, module: Any, data: Sequence[Tensor] = DATA, **arguments: Any) -> Any:
    trainer.fit(module, DataLoader(list(data), batch_size=None), **arguments)
    return module


def run_of(logdir: Path) -> Any:
    (run,) = tbnum.read(logdir).values()
    return run


def plain_loop(logdir: Path, scaler: Any, data: Sequence[Tensor] = DATA) -> tuple[nn.Module, Any]:
    model = Half()
    model.load_state_dict(Module().net.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=logdir) as monitor:
        log_loss = None if scaler is not None else monitor.log_loss
        train(model, optimizer, scaler, data, max_norm=MAX_NORM, accumulate=ACCUMULATE, log_loss=log_loss)
    return model, run_of(logdir)


def assert_same_steps(ours: Any, theirs: Any) -> None:
    assert list(ours.steps) == list(theirs.steps)
    for name, values in theirs.steps.items():
        if name != "wall_time":
            np.testing.assert_array_equal(ours.steps[name], values, err_msg=name)


def assert_same_parameters(one: nn.Module, other: nn.Module) -> None:
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("make_scaler", "data"), [(scaler_for_tests, DATA), (lambda: None, GOOD)], ids=["scaler", "no scaler"]
)
def test_a_training_is_recorded_as_the_plain_loop_is_and_is_bitwise_the_one_without(
    make_scaler: Callable[[], Any], data: Sequence[Tensor], tmp_path: Path
) -> None:
    callback = NumericsCallback(tmp_path / "with")
    module = fit(trainer(tmp_path, [callback], make_scaler()), Module(), data)
    assert callback.monitor is None
    assert_same_parameters(module, fit(trainer(tmp_path, [], make_scaler()), Module(), data))
    model, plain = plain_loop(tmp_path / "plain", make_scaler(), data)
    assert_same_parameters(module.net, model)
    run = run_of(tmp_path / "with")
    assert_same_steps(run, plain)
    assert [(each.step, each.kind, each.cause) for each in run.events] == [
        (each.step, each.kind, each.cause) for each in plain.events
    ]
    assert len(run.steps["step"]) == STEPS and (run.steps["micro_batches"] == ACCUMULATE).all()
    assert (run.steps["max_norm"][~run.steps["skipped"]] == MAX_NORM).all()
    assert run.steps["skipped"].any() == (make_scaler() is not None)
    assert set(run.meta["parameters"]) == {"net.first", "net.second", "net.bias"}


def test_with_its_tensorboard_logger_there_is_one_event_file_and_both_write_to_it(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="", version="run")
    callback = NumericsCallback(scalar_interval=1)
    fit(trainer(tmp_path, [callback], scaler_for_tests(), logger=logger, log_every_n_steps=1), Module())
    folder = tmp_path / "run"
    assert len(list(folder.glob("*tfevents*"))) == 1 and len(list(folder.glob("*.tbnum"))) == 2
    events = EventAccumulator(str(folder)).Reload()
    assert len(events.Scalars("tbnum/grad_norm")) == STEPS and events.Scalars("their_loss")
    assert len(run_of(folder).steps["step"]) == STEPS


def test_another_loggers_folder_is_used_as_well(tmp_path: Path) -> None:
    fit(trainer(tmp_path, [NumericsCallback()], logger=CSVLogger(tmp_path, name="", version="run")), Module())
    assert len(run_of(tmp_path / "run").steps["step"]) == STEPS


def test_manual_optimization_with_two_optimizers_records_both(tmp_path: Path) -> None:
    callback = NumericsCallback(tmp_path / "with", optimizer_names=["net", "other"])
    manual: dict[str, Any] = {"accumulate_grad_batches": 1, "gradient_clip_val": None}
    module = fit(trainer(tmp_path, [callback], **manual), Two(), GOOD[:8])
    assert_same_parameters(module, fit(trainer(tmp_path, **manual), Two(), GOOD[:8]))

    plain = Two()
    nets = {"net": plain.net, "other": plain.other}
    optimizers = dict(zip(nets, plain.configure_optimizers(), strict=True))
    with tbnum.wrap(optimizers, model=plain, logdir=tmp_path / "plain") as monitor:
        for batch, (name, net) in itertools.product(GOOD[:8], nets.items()):
            optimizers[name].zero_grad()
            loss = net(batch).square().mean()
            monitor.log_loss(loss)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
            optimizers[name].step()
    assert_same_parameters(module, plain)
    assert_same_steps(run_of(tmp_path / "with"), run_of(tmp_path / "plain"))
    assert len(run_of(tmp_path / "with").steps["other/grad_norm"]) == 8


def test_a_mistake_in_a_loop_is_reported_with_the_users_line_not_lightnings(tmp_path: Path) -> None:
    callback = NumericsCallback(tmp_path)
    manual: dict[str, Any] = {"accumulate_grad_batches": 1, "gradient_clip_val": None}
    fit(trainer(tmp_path, [callback], scaler_for_tests(), **manual), Two(), GOOD[:8])  # clips before it unscales
    (mistake,) = [each for each in run_of(tmp_path).events if each.kind == "clip_before_unscale"]
    line = Path(__file__).read_text().splitlines()[int(mistake.data["where"].partition(":")[2]) - 1]
    assert mistake.data["where"].startswith("test_integrations_lightning.py:") and "self.clip_gradients(" in line


@pytest.mark.parametrize("lost", [False, True], ids=["whole checkpoint", "without the scaler's state"])
def test_a_resumed_training_is_one_record_and_names_the_state_that_did_not_come_back(
    lost: bool, tmp_path: Path
) -> None:
    half = STEPS // 2
    first = trainer(tmp_path, [NumericsCallback(tmp_path / "run")], scaler_for_tests(), max_epochs=1)
    fit(first, Module(), DATA[: half * ACCUMULATE])
    first.save_checkpoint(tmp_path / "half.ckpt")
    checkpoint = torch.load(tmp_path / "half.ckpt", weights_only=True)
    if lost:
        del checkpoint["MixedPrecision"]
        torch.save(checkpoint, tmp_path / "half.ckpt")
    second = trainer(tmp_path, [NumericsCallback(tmp_path / "run")], scaler_for_tests(), max_epochs=2)
    fit(second, Module(), DATA[half * ACCUMULATE :], ckpt_path=tmp_path / "half.ckpt")
    run = run_of(tmp_path / "run")
    assert run.steps["step"].tolist() == list(range(STEPS))
    kinds = [each.kind for each in run.events if each.kind in ("resume", "scaler_state_lost")]
    assert kinds == (["resume", "scaler_state_lost"] if lost else ["resume"])
    if not lost:
        _, plain = plain_loop(tmp_path / "plain", scaler_for_tests())
        for name in ("loss", "grad_norm", "grad_norm_clipped", "loss_scale", "skipped"):
            np.testing.assert_array_equal(run.steps[name], plain.steps[name], err_msg=name)


def test_a_second_fit_goes_on_and_an_exception_is_in_the_record(tmp_path: Path) -> None:
    callback = NumericsCallback(tmp_path / "run")
    its_trainer = trainer(tmp_path, [callback], max_epochs=1)
    module = fit(its_trainer, Module())
    its_trainer.fit_loop.max_epochs = 2
    bad: list[Any] = [*GOOD[:4], "no tensor"]
    with pytest.raises(AttributeError):
        fit(its_trainer, module, bad)
    run = run_of(tmp_path / "run")
    assert run.steps["step"].tolist() == list(range(STEPS + 2))
    (crash,) = [each for each in run.events if each.kind == "crash"]
    assert crash.data["error"].startswith("AttributeError")
    assert callback.monitor is None and copy.deepcopy(callback).monitor is None


def test_a_checkpoint_from_before_tbnum_goes_on_at_the_trainers_step(tmp_path: Path) -> None:
    before = trainer(tmp_path, max_epochs=1)
    module = fit(before, Module(), GOOD)
    before.save_checkpoint(tmp_path / "before.ckpt")
    callback = NumericsCallback(tmp_path / "run")
    after = trainer(tmp_path, [callback], max_epochs=2)
    fit(after, Module(), GOOD, ckpt_path=tmp_path / "before.ckpt")
    steps = run_of(tmp_path / "run").steps["step"].tolist()
    assert steps == list(range(before.global_step, after.global_step)) and before.global_step > 0
    assert module is not None


def test_a_checkpoint_from_before_the_callback_continues_a_record_that_knows_less(tmp_path: Path) -> None:
    """The record ends at an earlier step than the checkpoint: those between are not there, and no step is renamed."""
    early = trainer(tmp_path, [NumericsCallback(tmp_path / "run")], max_epochs=1)
    module = fit(early, Module(), GOOD)
    unseen = trainer(tmp_path, max_epochs=3)
    early.save_checkpoint(tmp_path / "early.ckpt")
    fit(unseen, module, GOOD, ckpt_path=tmp_path / "early.ckpt")
    unseen.save_checkpoint(tmp_path / "unseen.ckpt")
    late = trainer(tmp_path, [NumericsCallback(tmp_path / "run")], max_epochs=4)
    fit(late, Module(), GOOD, ckpt_path=tmp_path / "unseen.ckpt")
    run = run_of(tmp_path / "run")
    assert run.steps["step"].tolist() == [
        *range(early.global_step),
        *range(unseen.global_step, late.global_step),
    ]
    (resume,) = [event for event in run.events if event.kind == "resume"]
    assert f"from step {unseen.global_step}, as the framework counts its steps" in resume.message


def test_lightning_cli_takes_every_option_of_wrap(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse", reason="needs jsonargparse[signatures]")
    from lightning.pytorch.cli import LightningCLI
    from lightning.pytorch.demos.boring_classes import BoringModel

    (tmp_path / "train.yaml").write_text(f"""
trainer:
  max_steps: 6
  accelerator: cpu
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  callbacks:
    - class_path: tbnum.integrations.lightning.NumericsCallback
      init_args:
        logdir: {tmp_path / "run"}
        tensor_interval: 2
        scalar_interval: null
        activations: ["layer"]
        config: {{dataset: books}}
""")
    arguments = ["fit", "--config", str(tmp_path / "train.yaml")]
    LightningCLI(BoringModel, save_config_callback=None, seed_everything_default=False, args=arguments)
    run = run_of(tmp_path / "run")
    assert run.steps["step"].tolist() == list(range(6)) and run.meta["config"] == {"dataset": "books"}
    assert np.isfinite(run.steps["param_norm"]).tolist() == [True, False] * 3


def test_the_last_short_window_of_an_epoch_shows_the_mean_of_its_losses(tmp_path: Path) -> None:
    """Lightning divides each loss by the accumulation, whatever is left of the epoch."""
    seen: list[float] = []

    class Constant(Module):
        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            seen.append(loss.item())
            return loss

    callback = NumericsCallback(tmp_path / "run")
    fit(trainer(tmp_path, [callback], accumulate_grad_batches=7, gradient_clip_val=None), Constant(), GOOD[:12])
    run = run_of(tmp_path / "run")
    assert run.steps["micro_batches"].tolist() == [7, 5]
    np.testing.assert_allclose(run.steps["loss"], [np.mean(seen[:7]), np.mean(seen[7:])], rtol=1e-6)


# -- bad input -------------------------------------------------------------------------------------------------------


def test_a_wrong_option_is_refused_when_the_callback_is_made() -> None:
    with pytest.raises(TypeError, match=r"tensor_intervall.*takes logdir, tensor_interval"):
        NumericsCallback(tensor_intervall=5)
    with pytest.raises(ValueError, match="scalar_interval is 0"):
        NumericsCallback(scalar_interval=0)
    with pytest.raises(ValueError, match="local folders only"):
        NumericsCallback("s3://bucket/run")
    with pytest.raises(ValueError, match=r"same name twice: \['a', 'a'\]"):  # one would hide the other
        NumericsCallback(optimizer_names=["a", "a"])
    with pytest.raises(TypeError, match="optimizer_names is a text, 'generator'"):
        NumericsCallback(optimizer_names="generator")
    with pytest.raises(ValueError, match=r"text without '/'.*'a/b'"):
        NumericsCallback(optimizer_names=["a/b", "c"])


def test_names_for_more_optimizers_than_there_are_are_reported(tmp_path: Path) -> None:
    callback = NumericsCallback(tmp_path / "run", optimizer_names=["net", "other"])
    with pytest.warns(RuntimeWarning, match=r"2 names \['net', 'other'\] for 1 optimizer"):
        fit(trainer(tmp_path, [callback]), Module(), GOOD[:2])


class DeepSpeedStrategy(SingleDeviceStrategy):
    """Stands in for Lightning's by its name."""


@pytest.mark.parametrize(
    ("logdir", "strategy", "message"),
    [
        (None, "auto", r"no logger with a folder.*NumericsCallback\(logdir="),
        ("run", DeepSpeedStrategy("cpu"), "DeepSpeedStrategy no hook sees it.*'ddp'"),
        ("file", "auto", "records nothing of this training.*file"),
    ],
    ids=["no folder", "an engine of its own", "a folder that is a file"],
)
def test_what_cannot_be_recorded_is_a_warning_and_the_training_is_the_same(
    logdir: str | None, strategy: Any, message: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    callback = NumericsCallback(None if logdir is None else tmp_path / logdir)
    with pytest.warns(RuntimeWarning, match=message) as caught:
        module = fit(trainer(tmp_path, [callback], strategy=strategy), Module(), GOOD[:4])
    assert len([each for each in caught if issubclass(each.category, RuntimeWarning)]) == 1
    assert not list(tmp_path.rglob("*.tbnum"))
    assert_same_parameters(module, fit(trainer(tmp_path), Module(), GOOD[:4]))


def test_trouble_in_a_hook_is_a_warning_and_the_training_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tbnum.Monitor, "state_dict", lambda self: 1 / 0)
    with pytest.warns(RuntimeWarning, match="training continues.*ZeroDivisionError"):
        module = fit(trainer(tmp_path, [NumericsCallback(tmp_path)]), Module(), GOOD[:4])
    assert_same_parameters(module, fit(trainer(tmp_path), Module(), GOOD[:4]))


# -- ranks -----------------------------------------------------------------------------------------------------------

RANKS = """
import os, sys, torch
import pytorch_lightning as pl
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.plugins import MixedPrecision
from pytorch_lightning.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from tbnum.integrations.lightning import NumericsCallback
from tests.loops import Half, batches

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = Half()
    def training_step(self, batch, batch_idx):
        return self.net(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

class Sharded(Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 1)
    def configure_model(self):
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

def fit(module, name, **settings):
    pl.Trainer(
        accelerator="cpu", devices=2, callbacks=NumericsCallback(), max_epochs=1, gradient_clip_val=0.5,
        logger=TensorBoardLogger(sys.argv[1], name=name), enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, use_distributed_sampler=False, **settings,
    ).fit(module, DataLoader(batches(16)[int(os.environ["RANK"]) :: 2], batch_size=None))

scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=4)
fit(Module(), "ddp", strategy="ddp", plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)])
fit(Sharded(), "fsdp2", strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1))
"""


def test_ranks_share_one_folder_and_one_event_file_and_their_norms_are_those_of_one_process(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=1200,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("ddp", "fsdp2"):
        (folder,) = (tmp_path / name).iterdir()  # both ranks chose the same version
        assert len(list(folder.glob("*tfevents*"))) == 1
        assert {path.name.split(".")[-2] for path in folder.glob("*.tbnum")} - {"tensors"} == {"rank0", "rank1"}
        run = run_of(folder)
        assert run.meta["world_size"] == 2 and len(run.steps["step"]) == 8
        assert run.steps["skipped"].any() == (name == "ddp")

    torch.manual_seed(0)
    Half()
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path / "one process"):
        train(model, optimizer, None, batches(16), max_norm=0.5, accumulate=2)
    plain = run_of(tmp_path / "one process")
    for column in ("grad_norm", "grad_norm_clipped"):
        np.testing.assert_allclose(run.steps[column], plain.steps[column], rtol=1e-5, err_msg=column)
