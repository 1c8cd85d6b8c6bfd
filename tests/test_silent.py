"""What used to pass in silence is an error or a warning, which names the value and the way out."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tbnum
from tbnum.explain import what_led_here
from tests.recorded import record


def parameter_and_optimizer() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    parameter = torch.nn.Parameter(torch.ones(3))
    return parameter, torch.optim.SGD([parameter], lr=0.1)


def warned(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(each.filename == __file__ for each in caught), "a warning points at the user's line"
    return [str(each.message) for each in caught]


def test_a_loss_of_several_elements_is_summed_and_said_once(tmp_path: Path) -> None:
    parameter, optimizer = parameter_and_optimizer()
    with tbnum.wrap(optimizer, logdir=tmp_path) as monitor:

        def steps() -> None:
            for _ in range(3):
                (parameter * 2).sum().backward()
                monitor.log_loss(torch.arange(3.0))
                optimizer.step()

        (message,) = warned(steps)
    assert "shape (3,)" in message and "loss.mean()" in message
    (run,) = tbnum.read(tmp_path).values()
    assert run.steps["loss"].tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize(
    "call",
    [
        lambda monitor: monitor.log_loss(1.0),
        lambda monitor: monitor.annotate("late"),
        lambda monitor: monitor.on_event(print),
        lambda monitor: monitor.load_state_dict(monitor.state_dict()),
        lambda monitor: monitor.on_scalars(print),
        lambda monitor: monitor.__enter__(),
    ],
    ids=["log_loss", "annotate", "on_event", "load_state_dict", "on_scalars", "with monitor"],
)
def test_what_comes_after_close_is_said_once_and_records_nothing(call: Any, tmp_path: Path, request: Any) -> None:
    parameter, optimizer = parameter_and_optimizer()
    with tbnum.wrap(optimizer, logdir=tmp_path) as monitor:
        parameter.sum().backward()
        optimizer.step()
    (run,) = tbnum.read(tmp_path).values()
    before = run.steps["loss"].tolist(), run.events
    (message,) = warned(lambda: [call(monitor) for _ in range(3)])
    assert request.node.callspec.id in message and "after close()" in message
    assert repr(str(tmp_path)) in message and "tbnum.wrap()" in message
    run.refresh()
    assert (run.steps["loss"].tolist(), run.events) == before


def test_a_session_that_no_run_has_is_an_error_and_one_that_some_lack_a_warning(tmp_path: Path) -> None:
    for name, sessions in (("a", 2), ("b", 1)):
        for _ in range(sessions):
            record(tmp_path / name)
    with pytest.raises(ValueError, match=r"no run has a session 99: 'a' has 2, 'b' has 1\. The first is 0"):
        tbnum.read(tmp_path, session=99)
    (message,) = warned(lambda: tbnum.read(tmp_path, session=1))
    assert "of 2 runs 1 have no session 1" in message and "'b' has 1" in message
    assert warned(lambda: tbnum.read(tmp_path, session=-1)) == []
    for wrong in ("0", 1.5, True):
        with pytest.raises(TypeError, match=re.escape(repr(wrong))):
            tbnum.read(tmp_path, session=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, ["runs"], 3])
def test_a_logdir_that_is_no_path_is_named_with_the_way_out(given: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(repr(given)) + ".*give the logdir of tbnum.wrap"):
        tbnum.read(given)


def test_a_folder_that_is_not_there_is_reported_as_the_command_tells_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tbnum.cli import main

    with pytest.raises(FileNotFoundError) as error:
        tbnum.read(tmp_path / "nope")
    assert "nope" in str(error.value) and "give the logdir of tbnum.wrap()" in str(error.value)
    assert main(["report", str(tmp_path / "nope")]) == 2
    assert str(error.value) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "right"), [("log_dir", "logdir"), ("tensors_interval", "tensor_interval"), ("models", "model")]
)
def test_an_argument_that_there_is_not_is_reported_with_the_nearest(wrong: str, right: str, tmp_path: Path) -> None:
    _, optimizer = parameter_and_optimizer()
    with pytest.raises(TypeError, match=f"no argument '{wrong}'; did you mean {right}='x'"):
        tbnum.wrap(optimizer, **{wrong: "x"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no argument 'path'; it takes optimizer, scaler, logdir"):
        tbnum.wrap(optimizer, path=tmp_path)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


class Thing:
    pass


def test_what_a_config_holds_by_address_is_kept_without_it_and_said(tmp_path: Path) -> None:
    metas = []
    for name in ("one", "two"):
        _, optimizer = parameter_and_optimizer()
        config = {"act": lambda x: x, "deep": {"thing": [Thing(), 3]}, "dtype": torch.float16, "sizes": (1, 2)}
        messages = warned(lambda: tbnum.wrap(optimizer, logdir=tmp_path / name, config=config).close())  # noqa: B023
        assert len(messages) == 2
        assert "config['act'] is a function" in messages[0] and "config['deep']['thing'][0]" in messages[1]
        metas.append(tbnum.read(tmp_path)[name].meta)
    kept = metas[0]["config"]
    assert kept == metas[1]["config"] and metas[0]["fingerprint"] == metas[1]["fingerprint"]
    assert "0x" not in str(kept)
    assert kept["deep"] == {"thing": ["<tests.test_silent.Thing object>", 3]} and kept["sizes"] == [1, 2]
    assert kept["dtype"] == "torch.float16"


def test_what_diff_cannot_compare_is_named_with_the_way_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        record(tmp_path / name)
    runs = tbnum.read(tmp_path)
    a, b = runs.values()
    for wrong in (str(tmp_path / "a"), None, runs):
        with pytest.raises(TypeError, match=r"^a is .*not a run: (tbnum\.read|give its values)"):
            tbnum.diff(wrong, b)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^noise is .*not a run: give its values"):
        tbnum.diff(a, b, noise=runs)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^b is \[\], an empty list"):
        tbnum.diff(a, [])
    with pytest.raises(ValueError, match=r"columns is 'loss'; give a list of names, as \['loss'\]"):
        tbnum.diff(a, b, columns="loss")
    with pytest.raises(ValueError, match=r"columns is \[\]; .* None, for all"):
        tbnum.diff(a, b, columns=[])
    for wrong in ("12", 1.5, True):
        with pytest.raises(ValueError, match=re.escape(f"until is {wrong!r}; it has to be the number of a step")):
            tbnum.diff(a, b, until=wrong)  # type: ignore[arg-type]
        if wrong != 1.5:
            with pytest.raises(ValueError, match=re.escape(f"rtol is {wrong!r}; it has to be a number")):
                tbnum.diff(a, b, rtol=wrong)  # type: ignore[arg-type]
    assert tbnum.diff([a], [b], noise=[a, b]).steps == tbnum.diff(a, b, noise=a).steps  # type: ignore[arg-type]


def test_a_report_from_a_step_that_the_run_does_not_have_is_an_error(tmp_path: Path) -> None:
    record(tmp_path, range(20))
    (run,) = tbnum.read(tmp_path).values()
    assert "19" in run.report(since=19)
    with pytest.raises(ValueError, match=r"since is 20; run '\.' has no step from there on: the last one is 19"):
        run.report(since=20)
    for wrong in ("3d", True, 1.5):
        with pytest.raises(ValueError, match=re.escape(f"since is {wrong!r}")):
            run.report(since=wrong)  # type: ignore[arg-type]


def test_a_step_that_is_no_number_is_refused_wherever_one_is_asked_for(tmp_path: Path) -> None:
    parameter, optimizer = parameter_and_optimizer()
    with tbnum.wrap(optimizer, logdir=tmp_path):
        for _ in range(3):
            parameter.sum().backward()
            optimizer.step()
    (run,) = tbnum.read(tmp_path).values()
    asked = (
        run.batch,
        run.tensors.at,
        run.histograms["gradient"].at,
        lambda step: what_led_here(run, step),
    )
    for ask in asked:
        for wrong in ("1", None, 1.5, True):
            with pytest.raises(TypeError, match=re.escape(f"step is {wrong!r}; it has to be the number of a step")):
                ask(wrong)  # type: ignore[arg-type]
        ask(run.steps["step"][0] if ask is not asked[3] else run.steps["step"][1])  # whole numbers of numpy's
    with pytest.raises(ValueError, match=r"prefixes is 'group0'; give a list of names of modules, as \['group0'\]"):
        run.tensors.grouped("grad_norm", prefixes="group0")
    for wrong in ("1", 1.5, 0):
        with pytest.raises(ValueError, match=re.escape(f"depth is {wrong!r}; it must be a whole number")):
            run.tensors.grouped("grad_norm", depth=wrong)  # type: ignore[arg-type]


def test_tags_that_are_no_mapping_and_an_empty_logdir_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tbnum.cli import main

    for wrong in ("loss=objective", [("loss", "objective")], {3: "objective"}):
        with pytest.raises(TypeError, match=re.escape(f"tags is {wrong!r}; give a mapping of columns to tags")):
            tbnum.read(tmp_path, tags=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"logdir is ''; give the logdir of tbnum\.wrap"):
        tbnum.read("")
    assert main(["report", ""]) == 2  # of an empty variable; not of the folder that the command runs in
    assert "logdir is ''" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["diff", "a", "b", "--rtol", "much"])
    assert "'much' is no tolerance: it has to be a number of 0 or more" in capsys.readouterr().err


def test_a_plot_of_a_text_in_place_of_a_list_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    record(tmp_path)
    (run,) = tbnum.read(tmp_path).values()
    for wrong in ("loss", []):
        with pytest.raises(ValueError, match=re.escape(f"columns is {wrong!r}; give a list of names, as ['loss']")):
            run.plot(wrong)


def test_a_switch_that_is_neither_on_nor_off_is_refused(tmp_path: Path) -> None:
    _, optimizer = parameter_and_optimizer()
    for name in ("checksums", "tensorboard_tensors"):
        with pytest.raises(TypeError, match=f"{name} is 'no'; it has to be True or False"):
            tbnum.wrap(optimizer, logdir=tmp_path, **{name: "no"})  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_callback_of_a_framework_refuses_what_wrap_refuses_before_training_begins() -> None:
    from tbnum.integrations.recording import Recording

    for options, message in (
        ({"ranks": "some"}, "ranks is 'some'"),
        ({"data_ids": "evnts"}, "data_ids='evnts'"),
        ({"flush_seconds": 0}, "flush_seconds is 0"),
        ({"max_tensor_bytes": -1}, "max_tensor_bytes is -1"),
        ({"scalar_interval": 0}, "scalar_interval is 0"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            Recording(None, options)
    (message,) = warned(lambda: Recording(None, Recording(None, {"config": {"act": lambda x: x}}).options))
    assert "config['act'] is a function" in message


def test_a_run_without_steps_is_a_finding_and_an_error_once_it_has_ended(tmp_path: Path) -> None:
    _, optimizer = parameter_and_optimizer()
    with tbnum.wrap(optimizer, logdir=tmp_path):
        (run,) = tbnum.read(tmp_path).values()
        (finding,) = run.findings
        assert (finding.rule, finding.severity) == ("no_steps", "info") and "so far" in finding.evidence
    run.refresh()
    (finding,) = run.findings
    assert (finding.rule, finding.severity) == ("no_steps", "error")
    assert "No steps were recorded" in run.report()


def test_wrapped_again_with_other_options_the_first_ones_stay_and_that_is_said(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"lr": 0.1, "mask": np.ones(3)}
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensor_interval=20, config=config) as monitor:

        def again(**others: Any) -> list[str]:
            given = {"model": model, "tensor_interval": 20, "config": config} | others
            return warned(lambda: _same(tbnum.wrap(optimizer, logdir=tmp_path, **given), monitor))

        assert again() == []
        (message,) = again(tensor_interval=10, data_ids="all", config={"lr": 0.2})
        assert "as tensor_interval, data_ids, config is not taken" in message and "close()" in message
        (message,) = again(model=torch.nn.Sequential(model))
        assert "as model is not taken" in message


def _same(found: Any, expected: Any) -> None:
    assert found is expected


@pytest.mark.parametrize("verbose", ["no", 0, 2])
def test_verbose_is_true_false_or_none(verbose: Any, tmp_path: Path) -> None:
    _, optimizer = parameter_and_optimizer()
    with pytest.raises(TypeError, match=f"verbose is {verbose!r}; it has to be True"):
        tbnum.wrap(optimizer, logdir=tmp_path / "run", verbose=verbose)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", [None, "long", [1.0]])
def test_a_longest_norm_that_is_no_number_is_named(given: Any, tmp_path: Path) -> None:
    parameter, optimizer = parameter_and_optimizer()
    parameter.grad = torch.ones(3)
    with tbnum.wrap(optimizer, logdir=tmp_path) as monitor:
        for clip in (lambda: tbnum.clip_grad_norm_([parameter], given), lambda: monitor.clip_grad_norm_(given)):
            with pytest.raises(TypeError, match=re.escape(f"max_norm is {given!r}; it must be a number")):
                clip()
    with pytest.raises(TypeError, match=r"parameters is 1\.0; give the tensors"):
        tbnum.clip_grad_norm_(1.0, 1.0)  # type: ignore[arg-type]
    assert parameter.grad.tolist() == [1.0, 1.0, 1.0]
