"""Faults of one line that every other test let pass. Each test here fails under the fault that it is named for."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import tbnum
from tbnum.explain import explain_run
from tbnum.explain.facts import skips_of
from tbnum.explain.level_findings import _habit
from tbnum.explain.predict import next_overflow
from tbnum.explain.resume import OptimizerNow, _is_trained
from tbnum.formats import INF, ZERO
from tbnum.log import record_file
from tbnum.log.folder import last_trailer
from tbnum.log.growing import GrowingColumns
from tbnum.log.json_text import plain
from tbnum.log.record_file import RecordTail, frame
from tbnum.log.row_packer import RowPacker
from tbnum.log.schema import Event
from tbnum.log.tensors import _TYPES, TensorTable, _narrowed, _rounded_shares
from tbnum.measure.checksums import checksums
from tbnum.measure.histogram import histogram_of, total_histograms_of
from tbnum.measure.norms import norms_of
from tbnum.measure.statistics import STATISTICS, statistics_of
from tbnum.observe.gradients import leads_to_others
from tbnum.observe.rescaling import Rescaling, rescaling
from tensorboard_plugin_tbnum.decimate import wide_columns
from tests import test_levels as levels
from tests.corpus import Known
from tests.corpus import Loop as TrainedLoop
from tests.loops import OPTIMIZERS, Half, batches, train
from tests.recorded import open_log, row
from tests.test_causes import nan_only
from tests.test_explain import Loop, findings, skips
from tests.test_record_file import record as text_record
from tests.test_record_file import texts, written
from tests.test_transfer import SlowDevice, device  # noqa: F401 - a fixture


def only(logdir: Path) -> Any:
    (run,) = tbnum.read(logdir).values()
    return run


# -- explain -----------------------------------------------------------------------------------------------------------


def test_after_two_failed_probes_in_a_row_a_scale_has_held_for_all_the_steps_at_it() -> None:
    loop = Loop(growth_interval=50)
    for _ in range(2):  # 50 steps at 2^16, one at 2^17 that overflows
        loop.steps(50)
        loop.step(overflow=True)
    loop.steps(7)
    loop.step(overflow=True)
    *probes, batch = skips(explain_run(loop.run()))
    assert [skip.cause for skip in probes] == ["growth_probe"] * 2 and batch.cause == "bad_batch"
    evidence = batch.data["evidence"]
    assert (evidence["held_before_probe"], evidence["held_steps"], evidence["failed_probe"]) == (100, 7, 2.0**17)
    assert "for 100 steps" in batch.message and "for 7 more" in batch.message


@pytest.mark.parametrize("again", [False, True])
def test_a_skip_at_the_edge_that_a_second_one_follows_is_worth_a_look(again: bool, tmp_path: Path) -> None:
    """A lower scale that overflows too shows that the scale alone does not explain the first skip."""
    largest = {30: 1.05, 31: 2.2} if again else {30: 1.05}
    with TrainedLoop(tmp_path, Known(), init_scale=2.0**16, options={"tensor_interval": 5}) as loop:
        for step in range(50):
            loop.step(lambda step=step: loop.model((largest.get(step, 0.9), 0.1, 0.1)), planted="any")
    first, *more = skips(only(tmp_path).events)
    assert (first.step, first.cause, len(more)) == (30, "bad_batch", int(again))
    assert first.severity == ("warning" if again else "info")
    assert first.remedy.startswith("Look at the batch of step 30" if again else "Nothing to do")
    assert [(skip.cause, skip.severity) for skip in more] == [("bad_batch", "warning")] * len(more)


def test_a_log_that_ends_inside_its_warm_up_does_not_say_that_the_scale_settled() -> None:
    loop = Loop(scale=2.0**20)
    loop.steps(3, overflow=True)
    for skip in skips(explain_run(loop.run())):
        assert skip.cause == "scale_warmup" and "settled" not in skip.remedy
    loop.step()
    for skip in skips(explain_run(loop.run())):
        assert "settled at 2^17 after 3 skips" in skip.remedy


# -- log ---------------------------------------------------------------------------------------------------------------


def test_a_table_added_at_a_step_that_was_read_already_is_read_with_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, groups={"first": 1, "second": 1})
    for step in range(6):
        log.append_step(row(log.columns, step))
    log.write_tensors(TensorTable(5, ("a",), {"grad_norm": np.ones(1)}, "first"))
    assert log.flush(600)
    run = only(tmp_path)
    assert [table.names for table in run.tensors.at(5)] == [("a",)]
    before = run.tensors
    log.write_tensors(TensorTable(5, ("b",), {"grad_norm": np.full(1, 2.0)}, "second"))
    assert log.flush(600)
    assert run.refresh()
    assert [table.names for table in run.tensors.at(5)] == [("a",), ("b",)]
    assert run.tensors.changed_from(before) == 5
    steps, names, values = run.tensors["grad_norm"]
    assert (steps.tolist(), names, values.tolist()) == ([5], ("a", "b"), [[1.0, 2.0]])
    log.close()


def test_a_session_that_goes_back_to_exactly_its_last_step_records_it_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for step, loss in [*((step, 1.0) for step in range(10)), (9, 2.0)]:
        log.append_step(row(log.columns, step, loss=loss))
    log.close()
    run = only(tmp_path)
    assert run.steps["step"].tolist() == list(range(10)) and run.totals.steps == 10
    assert run.steps["loss"].tolist() == [1.0] * 9 + [2.0]


def test_a_checkpoint_of_the_last_step_takes_that_step_again(tmp_path: Path) -> None:
    def session(state: Any, data: list[torch.Tensor]) -> Any:
        model = Half()
        optimizer = OPTIMIZERS["SGD"](model.parameters())
        with tbnum.wrap(optimizer, logdir=tmp_path) as monitor:
            if state is not None:
                monitor.load_state_dict(state)
            states = []
            losses = train(model, optimizer, None, data, after_step=lambda step: states.append(monitor.state_dict()))
        return states, losses

    torch.manual_seed(0)
    states, first = session(None, batches(10))
    _, second = session(states[-2], batches(3, seed=2))  # written before step 9, the last one
    steps = only(tmp_path).steps
    assert steps["step"].tolist() == list(range(12))
    np.testing.assert_allclose(steps["loss"], [*first[:9], *second], rtol=1e-6)


@pytest.mark.parametrize("block", [1, 200, 8 << 20])
def test_of_several_records_that_may_be_torn_the_first_is_given_once_it_is_whole(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that is being written holds what looks like the beginnings of others, each longer than the file."""
    monkeypatch.setattr(record_file, "BLOCK_BYTES", block)
    header = frame(bytes(0x7000))[:12]
    whole = frame(text_record("x" * 40).replace(b"x" * 40, b"x" * 8 + header + b"y" * 8 + header))
    file = tmp_path / "1.host.2.tbnum"
    first = frame(text_record("a"))
    for cut in range(len(whole) - 30, len(whole)):
        written(file, first, whole[:cut])
        tail = RecordTail(file)
        assert texts(tail) == ["a"] and tail.damage == []
        written(file, first, whole, frame(text_record("b")))
        found = [found.offset for found in tail.read()]
        assert found == [len(first), len(first) + len(whole)] and tail.damage == [], cut


# -- measure -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elements", [3_000_000, 3_000_017])
def test_of_three_million_elements_none_is_dropped(elements: int) -> None:
    tensor = torch.zeros(elements)
    row_of_norms, whole_rows = 65_536, elements // 65_536 * 65_536
    places = {0, row_of_norms - 1, row_of_norms, whole_rows - 1, whole_rows, (1 << 18) - 1, 1 << 18, elements - 1}
    for place in sorted(places):
        tensor[place] = 3.0
        (norms,) = norms_of([tensor])
        assert norms.norms.tolist() == [3.0], place
        counts = histogram_of(tensor)
        (total,) = total_histograms_of([tensor]).values()
        for found in (counts, total):
            assert int(found[ZERO]) == elements - 1 and int(found[ZERO + 1 : INF].sum()) == 1, place
        (statistics,) = statistics_of([tensor])
        values = dict(zip(STATISTICS, statistics.values[0].tolist(), strict=True))
        assert (values["absmax"], values["zero"], values["nan"]) == (3.0, elements - 1, 0.0), place
        tensor[place] = math.nan
        (norms,), (statistics,) = norms_of([tensor]), statistics_of([tensor])
        assert math.isnan(norms.norms.item()) and int(norms.nonfinite()) == 1, place
        assert dict(zip(STATISTICS, statistics.values[0].tolist(), strict=True))["nan"] == 1.0, place
        tensor[place] = 0.0


# -- observe -----------------------------------------------------------------------------------------------------------


class HostReads(TorchDispatchMode):
    """Where observing asks the host for the value of a tensor: on a device each such question waits for it.

    Measuring (`meter.py` too) may ask where a tensor is on the CPU, as the device of these tests is; that it does not
    elsewhere, tests of its own say.
    """

    OBSERVE = str(Path(tbnum.__file__).parent / "observe")

    def __init__(self) -> None:
        super().__init__()
        self.where: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default:
            caller = sys._getframe(1)
            while "_dynamo" in caller.f_code.co_filename or caller.f_code.co_filename.endswith("_compile.py"):
                assert caller.f_back is not None
                caller = caller.f_back
            if caller.f_code.co_filename.startswith(self.OBSERVE) and not caller.f_code.co_filename.endswith(
                "meter.py"
            ):
                self.where.append(f"{caller.f_code.co_filename}:{caller.f_lineno}")
        return function(*args, **(kwargs or {}))


def test_with_a_fused_optimizer_on_a_device_no_value_is_asked_for_and_every_skip_is_known(
    device: SlowDevice,  # noqa: F811
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    model = Half()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=6)
    optimizer = OPTIMIZERS["AdamW"](model.parameters(), fused=True)
    reads = HostReads()
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path) as monitor:
        before = monitor.skipped_steps
        with reads:
            train(model, optimizer, scaler, batches(40, bad=[20]))
        assert (before, reads.where, device.waited) == (0, [], 0)
    run = only(tmp_path)
    counts = [int(run.steps["loss_scale"][at + 1] < run.steps["loss_scale"][at]) for at in range(39)]
    assert run.steps["skipped"][:-1].tolist() == [bool(count) for count in counts] and run.steps["skipped"][20]


def test_a_loss_logged_between_two_optimizers_is_that_of_the_step_they_share(tmp_path: Path) -> None:
    a, b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizers = {"first": torch.optim.SGD([a], lr=0.1), "second": torch.optim.SGD([b], lr=0.1)}
    with tbnum.wrap(optimizers, logdir=tmp_path) as monitor:
        for step in range(5):
            a.square().sum().backward()
            optimizers["first"].step()
            monitor.log_loss(10.0 + step)
            b.square().sum().backward()
            optimizers["second"].step()
            for optimizer in optimizers.values():
                optimizer.zero_grad()
    steps = only(tmp_path).steps
    assert steps["loss"].tolist() == [10.0, 11.0, 12.0, 13.0, 14.0]
    assert not np.isnan(steps["first/grad_norm"]).any() and not np.isnan(steps["second/grad_norm"]).any()


# -- constants and edges that single tests did not reach ------------------------------------------------------------


def test_a_share_too_small_for_its_16_bits_is_not_0_and_one_below_1_is_not_1() -> None:
    values = np.array([0.0, 1e-45, 1e-42, 0.9999, 1.0], np.float32)
    assert _rounded_shares(values).tolist() == [0, 1, 1, 0x3F7F, 0x3F80]


def test_numbers_that_float32_rounds_take_four_bytes_and_those_that_it_loses_eight() -> None:
    fourth, eighth = _TYPES.index("<f4"), _TYPES.index("<f8")
    assert _narrowed([np.array([0.1, 1e-30])], [False])[0][0] == fourth
    assert _narrowed([np.array([0.1, 1e-40])], [False])[0][0] == eighth  # float32 has fewer digits of it
    assert _narrowed([np.array([0.1, 1e300])], [False])[0][0] == eighth


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.uint8])
def test_where_a_large_tensor_lies_in_its_memory_does_not_matter_for_its_checksum(dtype: torch.dtype) -> None:
    values = torch.randint(0, 200, (80_000,)).to(dtype)
    room = torch.zeros(80_016, dtype=dtype)
    expected = checksums([values]).tolist()
    for offset in range(1, 10):
        room[offset : offset + 80_000] = values
        assert checksums([room[offset : offset + 80_000]]).tolist() == expected


@pytest.mark.parametrize(
    ("quotient", "meaning"),
    [
        (3.0, Rescaling.DIVISION),
        (5.0, Rescaling.DIVISION),
        (2.0**16, Rescaling.SCALE),
        (2.5, Rescaling.CLIP),
        (1.2, Rescaling.CLIP),
    ],
)
def test_gradients_divided_by_a_whole_number_are_divided_and_by_another_clipped(
    quotient: float, meaning: Rescaling
) -> None:
    attempt: Any = SimpleNamespace(samples=(6.0, 3.0), unscaled_after=None, arrived=[(1, 2)], backwards=[None])
    gradients: Any = SimpleNamespace(ids=lambda: (1, 2), samples=lambda like: (6.0 / quotient, 3.0 / quotient))
    assert rescaling(attempt, gradients) is meaning


def test_a_norm_that_overflows_under_a_scaler_is_no_gradient_that_was_not_finite(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1e-30)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        scaler.scale((parameter * torch.tensor([1e20, 1e20])).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    run = only(tmp_path)
    assert not run.steps["skipped"][0] and run.steps["nonfinite_tensors"][0] == 0
    assert [event.kind for event in run.events] == ["norm_overflow"]


@pytest.mark.parametrize(("at_least", "steps"), [(100, 100), (None, 1), (-1, 1), (2**53, 1), (math.nan, 1)])
def test_a_skip_stands_for_as_many_steps_as_its_event_says(at_least: Any, steps: int) -> None:
    event = Event(3, 0.0, "skip", data={} if at_least is None else {"at_least": at_least})
    assert skips_of(event) == steps


def test_counts_of_updates_are_sent_with_all_digits_and_no_column_that_is_spelled_after_them() -> None:
    wide = wide_columns(["updates", "D/updates", "zeta", "D/weights", "lr", "lr/1"])
    assert wide == {"step", "wall_time", "loss_scale", "updates", "D/updates", "lr", "lr/1"}


def test_a_loss_that_rose_twice_for_three_windows_does_so_by_itself() -> None:
    def risen(*lengths: int) -> np.ndarray:
        return np.concatenate([[False, *[True] * length, False] for length in lengths])

    assert _habit(risen(3, 4)) and _habit(risen(1, 3, 2, 3))
    assert not _habit(risen(3, 2, 2)) and not _habit(risen(9)) and not _habit(risen(1, 2, 1, 2, 1))


@pytest.mark.parametrize(("longest", "entries"), [(100, 11), (50, 6), (0, 1)])
def test_a_shortened_list_has_a_tenth_of_the_entries_that_a_text_has_characters(longest: int, entries: int) -> None:
    assert plain(list(range(1000)), longest) == list(range(entries))


def test_an_optimizer_that_never_steps_is_reported_after_fifty_backwards_and_not_before(tmp_path: Path) -> None:
    parameter, heard = nn.Parameter(torch.ones(2)), []
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with tbnum.wrap(optimizer, logdir=tmp_path) as monitor:
        monitor.on_event(lambda event: heard.append((event.kind, len(done))))
        done: list[int] = []
        for step in range(1, 61):
            done.append(step)
            parameter.sum().backward()
            optimizer.zero_grad()
    assert [(kind, at) for kind, at in heard if kind == "never_stepped"] == [("never_stepped", 50)]


def test_without_a_fast_checksum_the_data_of_a_whole_record_is_not_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, summed = tmp_path / "file", []
    path.write_bytes(frame(text_record("a" * 500)) + frame(text_record("b" * 500)))
    whole = record_file.masked_crc
    monkeypatch.setattr(record_file, "CHECKS_DATA", False)
    monkeypatch.setattr(record_file, "masked_crc", lambda data: summed.append(len(data)) or whole(data))
    assert len(texts(RecordTail(path))) == 2
    assert max(summed) < 500


def test_many_rows_at_once_are_all_there_and_a_column_that_comes_later_is_unknown_before() -> None:
    rows = np.zeros(9000, [("step", np.int64), ("loss", np.float64)])
    rows["step"], rows["loss"] = np.arange(9000), np.arange(9000) / 7
    columns = GrowingColumns()
    columns.append(rows)
    columns.provide(["grad_norm"])
    found = columns.views()
    assert np.array_equal(found["step"], rows["step"]) and np.array_equal(found["loss"], rows["loss"])
    assert np.isnan(found["grad_norm"]).all()


@pytest.mark.parametrize("by", [0.5, 3.0])
def test_a_backward_from_a_gradient_of_its_own_is_the_backward_of_so_many_losses(by: float, tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with tbnum.wrap(optimizer, logdir=tmp_path):
        parameter.square().sum().backward(torch.tensor(by))
        optimizer.step()
    assert only(tmp_path).steps["loss"].tolist() == [2 * by]


def test_a_row_with_too_many_values_is_lost_and_counted_not_cut() -> None:
    packer = RowPacker(("step", "wall_time", "loss"))
    packed, lost = packer.pack([(0, 1.0, 2.0), (1, 1.0, 2.0, 3.0), (2, 1.0)])
    assert lost == 2 and len(packed) == packer.dtype.itemsize


def test_the_totals_are_found_before_a_torn_end_however_long(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_step(row(log.columns, 0))
    log.close()
    whole = log.path.read_bytes()
    for torn in (100, 10_000, 1_000_000):
        log.path.write_bytes(whole + bytes(torn))
        assert last_trailer(log.path).steps == 1
    log.path.write_bytes(whole + bytes(17 << 20))  # more than a record may have: nothing is known, and nothing raised
    assert last_trailer(log.path).steps == 0


def test_many_skips_that_were_made_in_backward_have_its_remedy() -> None:
    loop = Loop()
    for _ in range(12):
        loop.steps(40)
        loop.step(overflow=True, **nan_only())
    found = explain_run(loop.run())
    (rate,) = [finding for finding in findings(loop.run()) if finding.rule == "skip_rate"]
    (remedy,) = {event.remedy for event in found if event.cause == "backward_nonfinite"}
    assert (rate.severity, rate.remedy) == ("warning", remedy)


@pytest.mark.parametrize(("now", "trained"), [(3.0, True), (1.0, False), (9.0, False)])
def test_two_measured_norms_say_whether_parameters_were_trained(now: float, trained: bool) -> None:
    past: Any = SimpleNamespace(steps={"param_norm": np.array([1.0, math.nan, 3.0])})
    optimizer = OptimizerNow(None, has_state=False, updates=None, stateless=True, lr=(0.1,), tensor_norms=(now,))
    assert _is_trained(past, optimizer) is trained


def test_half_as_many_micro_batches_again_say_nothing_of_how_losses_add_up() -> None:
    counts = np.where(np.arange(levels.COUNT) < 2500, 4.0, 6.0)
    run = levels.columns(levels.COUNT, loss=levels.falling() * counts, micro_batches=counts)
    assert "losses_added_up" not in levels.reported(run)


def test_a_loss_leads_to_others_past_constants_and_a_loss_without_a_graph_to_none() -> None:
    own, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    constant = torch.ones(2)
    assert not leads_to_others([torch.ones(()), (own * constant + own).sum()], [own])
    assert leads_to_others([torch.ones(()), (constant * own * other).sum()], [own])


def test_after_a_skip_that_ends_the_record_the_next_growth_is_counted_from_it() -> None:
    steps = {"step": np.arange(301), "growth_tracker": np.full(301, 7.0), "loss_scale": np.full(301, 2.0**16)}
    record: Any = SimpleNamespace(meta={"scaler": {"growth_interval": 20, "growth_factor": 2.0}}, steps=steps)
    skip = Event(300, 0.0, "skip", cause="growth_probe", data={"loss_scale": 2.0**16})
    backoff = Event(300, 0.0, "scale_backoff", data={"old_scale": 2.0**16, "new_scale": 2.0**15})
    found = next_overflow(record, [skip, backoff])
    assert found is not None and (found.step, found.growths) == (321, 1)


def test_one_layer_of_three_that_gets_no_gradient_any_more_is_an_info_and_two_a_warning(tmp_path: Path) -> None:
    for name, frozen, severity in (("one", 1, "info"), ("two", 2, "warning")):
        layers = [nn.Linear(4, 4) for _ in range(3)]

        def loss_of(step: int, layers: list[nn.Linear] = layers, frozen: int = frozen) -> torch.Tensor:
            used = layers if step < 120 else layers[frozen:]
            return sum(((layer(torch.randn(8, 4)) - 1).square().mean() for layer in used), torch.zeros(()))

        found = levels.trained(tmp_path / name, nn.ModuleList(layers), loss_of)
        assert found["no_gradient"] == severity
