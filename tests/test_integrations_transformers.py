"""Transformers' Trainer, recorded by its callback, beside a plain loop that does the same."""

from __future__ import annotations

import json
import os
import subprocess
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

import tbnum
from tests import warm

transformers = pytest.importorskip("transformers")

from tbnum.integrations.accelerate import check_supported  # noqa: E402
from tbnum.integrations.transformers import NumericsCallback  # noqa: E402

IGNORED = ("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")  # the framework's own
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings(*IGNORED)]

STEPS, ACCUMULATE, SIZE, MAX_NORM, LR = 10, 2, 2, 0.5, 1e-3
TOKENS = torch.randint(64, (STEPS * ACCUMULATE * SIZE, 8), generator=torch.Generator().manual_seed(1))


SAVED_AT = 4
SAVING = {"save_strategy": "steps", "save_steps": SAVED_AT, "save_total_limit": None}


class Model(nn.Module):
    """A GPT of two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        settings = {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}
        settings |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
        self.gpt = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=64, n_positions=8, n_embd=8, n_layer=2, n_head=2, **settings)
        )

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.gpt(input_ids=input_ids, labels=labels).loss}


def new_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LR)


def new_scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)


def trainer(folder: Path, callbacks: Iterable[Any] = (), with_scaler: bool = True, **settings: Any) -> Any:
    """On a CPU Accelerate makes no scaler by itself."""
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=SIZE,
        gradient_accumulation_steps=ACCUMULATE,
        max_grad_norm=MAX_NORM,
        learning_rate=LR,
        lr_scheduler_type="constant",
        fp16=with_scaler,
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
        **{"save_strategy": "no", **settings},
    )
    data = [{"input_ids": row, "labels": row} for row in TOKENS]
    model = Model()
    optimizers = new_optimizer(model), None
    made = InOrder(model, arguments, train_dataset=data, callbacks=list(callbacks), optimizers=optimizers)
    if with_scaler:
        made.accelerator.scaler = new_scaler()
        made.accelerator.native_amp = True  # else it does not unscale before it clips
    return made


class InOrder(transformers.Trainer):
    """Takes the data in its order, as the plain loop does."""

    def _get_train_sampler(self, *arguments: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def run_of(logdir: Path) -> Any:
    (run,) = tbnum.read(logdir).values()
    return run


def plain_loop(logdir: Path, with_scaler: bool = True) -> tuple[nn.Module, Any]:
    model, scaler = Model(), new_scaler() if with_scaler else None
    optimizer = new_optimizer(model)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=logdir) as monitor:
        for batches in TOKENS.view(STEPS, ACCUMULATE, SIZE, -1):
            for tokens in batches:
                with torch.autocast("cpu", torch.float16, enabled=with_scaler):
                    loss = model(tokens, tokens)["loss"]
                loss = loss / ACCUMULATE
                if scaler is None:
                    monitor.log_loss(loss)
                    loss.backward()
                else:
                    scaler.scale(loss).backward()
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
    return model, run_of(logdir)


def assert_same_parameters(one: nn.Module, other: nn.Module) -> None:
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("with_scaler", [True, False], ids=["scaler", "no scaler"])
def test_a_training_is_recorded_as_the_plain_loop_is_and_is_bitwise_the_one_without(
    with_scaler: bool, tmp_path: Path
) -> None:
    callback = NumericsCallback(tmp_path / "with")
    ours = trainer(tmp_path, [callback], with_scaler)
    ours.train()
    assert callback.monitor is None
    without = trainer(tmp_path, [], with_scaler)
    without.train()
    assert_same_parameters(ours.model, without.model)
    model, plain = plain_loop(tmp_path / "plain", with_scaler)
    assert_same_parameters(ours.model, model)
    run = run_of(tmp_path / "with")
    for name, values in plain.steps.items():
        if name != "wall_time":
            np.testing.assert_array_equal(run.steps[name], values, err_msg=name)
    assert [(each.step, each.kind, each.cause) for each in run.events] == [
        (each.step, each.kind, each.cause) for each in plain.events
    ]
    taken = ~run.steps["skipped"]
    assert taken.any() and taken.all() != with_scaler
    logged = np.array([each["grad_norm"] for each in ours.state.log_history if "grad_norm" in each])
    assert logged[taken] == pytest.approx(run.steps["grad_norm"][taken], rel=1e-6)
    assert "gpt.transformer.wte.weight" in run.meta["parameters"]


@pytest.mark.parametrize("ours_first", [False, True])
def test_with_its_tensorboard_callback_there_is_one_event_file_and_both_write_to_it(
    ours_first: bool, tmp_path: Path
) -> None:
    """Of the two callbacks either may open or close its files first."""
    theirs = transformers.integrations.TensorBoardCallback(SummaryWriter(str(tmp_path / "run")))
    callbacks = [theirs, NumericsCallback(tmp_path / "run" if ours_first else None, scalar_interval=1)]
    trainer(tmp_path, reversed(callbacks) if ours_first else callbacks).train()
    assert len(list((tmp_path / "run").glob("*tfevents*"))) == 1 and not (tmp_path / "tbnum").exists()
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    assert len(events.Scalars("tbnum/grad_norm")) == len(events.Scalars("train/loss")) == STEPS
    assert len(run_of(tmp_path / "run").steps["step"]) == STEPS


def test_without_a_tensorboard_callback_the_record_is_in_the_output_folder(tmp_path: Path) -> None:
    trainer(tmp_path, [NumericsCallback()]).train()
    assert len(run_of(tmp_path / "tbnum").steps["step"]) == STEPS
    assert len(list((tmp_path / "tbnum").glob("*tfevents*"))) == 1


@pytest.mark.parametrize(
    "case", ["whole", "callbacks restored", "without the scaler's state", "without the callback's"]
)
def test_a_resumed_training_is_one_record_and_names_the_state_that_did_not_come_back(case: str, tmp_path: Path) -> None:
    first = trainer(tmp_path, [NumericsCallback(tmp_path / "run", config={"data": Path("books")})], **SAVING)
    first.train()  # to the end; what came after the checkpoint is lost
    checkpoint = tmp_path / f"checkpoint-{SAVED_AT}"
    kept = json.loads((checkpoint / "trainer_state.json").read_text())
    if case == "without the scaler's state":
        (checkpoint / "scaler.pt").unlink()
    if case == "without the callback's":
        del kept["stateful_callbacks"]["NumericsCallback"]
        (checkpoint / "trainer_state.json").write_text(json.dumps(kept))
    restored = {"restore_callback_states_from_checkpoint": True} if case == "callbacks restored" else {}
    second = trainer(tmp_path, [NumericsCallback(tmp_path / "run")], **SAVING, **restored)
    second.train(resume_from_checkpoint=str(checkpoint))
    run = run_of(tmp_path / "run")
    assert run.steps["step"].tolist() == list(range(STEPS))
    assert len(run.meta["sessions"]) == 2 and run.meta["first_step"] == SAVED_AT
    kinds = [each.kind for each in run.events if each.kind in ("resume", "scaler_state_lost")]
    assert kinds == (["resume", "scaler_state_lost"] if case == "without the scaler's state" else ["resume"])
    if case != "without the scaler's state":
        model, plain = plain_loop(tmp_path / "plain")
        assert_same_parameters(second.model, model)
        for name in ("loss", "grad_norm", "grad_norm_clipped", "loss_scale", "skipped"):
            np.testing.assert_array_equal(run.steps[name], plain.steps[name], err_msg=name)


def test_a_checkpoint_from_before_tbnum_goes_on_at_the_trainers_step(tmp_path: Path) -> None:
    trainer(tmp_path, [], **SAVING).train()
    second = trainer(tmp_path, [NumericsCallback(tmp_path / "run")], **SAVING)
    second.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{SAVED_AT}"))
    run = run_of(tmp_path / "run")
    assert run.steps["step"].tolist() == list(range(SAVED_AT, STEPS))
    assert second.state.global_step == STEPS


def test_a_resumed_training_goes_on_in_the_folder_that_the_first_named_by_the_time(tmp_path: Path) -> None:
    """TensorBoardCallback gives the folder a new name; another `output_dir` is another run."""

    def theirs(name: str) -> Any:
        return transformers.integrations.TensorBoardCallback(SummaryWriter(str(tmp_path / name)))

    trainer(tmp_path, [theirs("runs/monday"), NumericsCallback()], **SAVING).train()
    checkpoint = str(tmp_path / f"checkpoint-{SAVED_AT}")
    trainer(tmp_path, [theirs("runs/tuesday"), NumericsCallback()], **SAVING).train(resume_from_checkpoint=checkpoint)
    run = run_of(tmp_path / "runs/monday")
    assert run.steps["step"].tolist() == list(range(STEPS)) and len(run.meta["sessions"]) == 2
    assert not list((tmp_path / "runs/tuesday").glob("*.tbnum"))

    other = tmp_path / "branch"
    trainer(other, [theirs("branch/runs/tuesday"), NumericsCallback()], **SAVING).train(
        resume_from_checkpoint=checkpoint
    )
    assert run_of(other / "runs/tuesday").steps["step"].tolist() == list(range(SAVED_AT, STEPS))
    assert len(run_of(tmp_path / "runs/monday").meta["sessions"]) == 2


# -- bad input -------------------------------------------------------------------------------------------------------


def test_a_wrong_option_is_refused_when_the_callback_is_made() -> None:
    with pytest.raises(TypeError, match="tensor_intervall"):
        NumericsCallback(tensor_intervall=5)
    with pytest.raises(ValueError, match="local folders only"):
        NumericsCallback("s3://bucket/run")


def trouble_in_state_dict(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tbnum.Monitor, "state_dict", lambda self: 1 / 0)


def an_engine_of_its_own(patch: pytest.MonkeyPatch) -> None:
    check = partial(check_supported, "MEGATRON_LM")
    patch.setattr("tbnum.integrations.transformers.check_supported", lambda distributed_type: check())


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (trouble_in_state_dict, "training continues.*ZeroDivisionError"),
        (an_engine_of_its_own, "records nothing of this training.*MEGATRON_LM"),
    ],
)
def test_trouble_is_a_warning_and_the_training_is_the_same(
    trouble: Callable[[pytest.MonkeyPatch], None], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = trainer(tmp_path, [NumericsCallback()], with_scaler=False, **SAVING)
    with monkeypatch.context() as patch:
        trouble(patch)
        with pytest.warns(RuntimeWarning, match=message):
            ours.train()
    without = trainer(tmp_path, [], with_scaler=False)
    without.train()
    assert_same_parameters(ours.model, without.model)


def test_after_a_training_that_raised_the_next_one_is_recorded(tmp_path: Path) -> None:
    ours = trainer(tmp_path, [NumericsCallback(tmp_path / "run")], with_scaler=False)
    optimizer_step = ours.training_step

    def fails(*arguments: Any) -> Any:
        if ours.state.global_step == 3:
            raise RuntimeError("the user's")
        return optimizer_step(*arguments)

    ours.training_step = fails
    with pytest.raises(RuntimeError, match="the user's"):
        ours.train()
    ours.training_step = optimizer_step
    ours.train()
    sessions = [tbnum.read(tmp_path / "run", session=number)["."] for number in (0, 1)]
    assert [len(each.steps["step"]) for each in sessions] == [3, STEPS]


def test_after_an_interrupt_another_trainer_records_in_the_same_folder(tmp_path: Path) -> None:
    class Interrupt(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                raise KeyboardInterrupt

    interrupted = trainer(tmp_path, [NumericsCallback(tmp_path / "run"), Interrupt()], with_scaler=False)
    with pytest.raises(KeyboardInterrupt):
        interrupted.train()
    callback = NumericsCallback(tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        trainer(tmp_path, [callback], with_scaler=False).train()  # as in a notebook, where the first is still there
    sessions = [tbnum.read(tmp_path / "run", session=number)["."] for number in (0, 1)]
    assert [len(each.steps["step"]) for each in sessions] == [3, STEPS]


# -- ranks -----------------------------------------------------------------------------------------------------------

RANKS = """
import sys
import torch
torch.set_num_threads(1)
from tests.test_integrations_transformers import NumericsCallback, trainer
trainer(sys.argv[1], [NumericsCallback()], with_scaler=False, ddp_backend="gloo").train()
"""


def test_ranks_share_one_folder_and_one_event_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    done = subprocess.run(
        [*warm.torchrun(2, "accelerate", "transformers"), "train.py", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=1200,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list((tmp_path / "tbnum").glob("*tfevents*"))) == 1
    ranks = {path.name.split(".")[-2] for path in (tmp_path / "tbnum").glob("*.tbnum")} - {"tensors"}
    assert ranks == {"rank0", "rank1"}
    run = run_of(tmp_path / "tbnum")
    assert run.meta["world_size"] == 2 and len(run.steps["step"]) == STEPS
    assert np.isfinite(run.steps["loss"]).all() and (run.steps["max_norm"] == MAX_NORM).all()
    assert "gpt.transformer.wte.weight" in run.meta["parameters"]
