"""Small parts of what observes and of what puts ranks together, against plain definitions and at their limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tbnum.log import ranks as ranks_of
from tbnum.log.growing import GrowingColumns
from tbnum.log.ranks import Plan, aligned, match_sessions
from tbnum.log.superseded import cuts
from tbnum.observe import scaled as scaled_losses
from tbnum.observe.beginning import Beginning, is_plain_mean
from tbnum.observe.rescaling import Rescaling, rescaling, unscaled_by_hand
from tbnum.observe.sentinels import Sentinels
from tbnum.observe.shares import MOST_RUNS, rank_samples

INF, NAN = math.inf, math.nan


# -- shares of samples -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 33, 64])
def test_the_shares_of_a_loss_that_adds_up_are_those_of_its_samples(size: int) -> None:
    random = np.random.default_rng(size)
    losses, norms = random.exponential(size=size), random.standard_normal(size) + 0.5
    calls: list[list[int]] = []

    def measure(rows: Sequence[int]) -> tuple[float, float]:
        calls.append(list(rows))
        assert len(rows) == size
        return float(losses[list(rows)].sum() / losses.sum()), float(norms[list(rows)].sum() / norms.sum())

    found = rank_samples(size, measure)
    assert sorted(share.sample for share in found) == list(range(size))
    for share in found:
        expected = losses[share.sample] / losses.sum(), norms[share.sample] / norms.sum()
        assert (share.loss, share.grad_norm) == pytest.approx(expected, abs=1e-9)
    assert [share.largest for share in found] == sorted((share.largest for share in found), reverse=True)
    assert len(calls) <= MOST_RUNS + 4 * max(size, 2).bit_length()


def test_of_a_large_batch_the_largest_share_is_found_in_so_many_runs() -> None:
    losses = np.ones(4096)
    losses[1234] = 500.0
    calls = 0

    def measure(rows: Sequence[int]) -> tuple[float, float]:
        nonlocal calls
        calls += 1
        return float(losses[list(rows)].sum() / losses.sum()), NAN

    found = rank_samples(4096, measure)
    assert found[0].sample == 1234 and found[0].loss == pytest.approx(500 / losses.sum())
    assert math.isnan(found[0].grad_norm) and calls == MOST_RUNS + 4 * 12


# -- gradients that were multiplied by hand ----------------------------------------------------------------------------


def scaled(before: Sequence[float], now: Sequence[float], backwards: int = 1, **more: Any) -> Rescaling:
    given = {"samples": list(before), "unscaled_after": None, "arrived": ((1,), 0), "backwards": [None] * backwards}
    attempt = SimpleNamespace(**{**given, **more})
    return rescaling(attempt, SimpleNamespace(ids=lambda: (1,), samples=lambda like: list(now)))  # type: ignore[arg-type]


def test_what_gradients_were_divided_by_tells_a_scale_from_a_count_and_from_a_clip() -> None:
    assert scaled([256.0, 128.0], [2.0, 1.0]) is Rescaling.SCALE
    assert scaled([64.0], [1.0]) is Rescaling.DIVISION and scaled([129.0], [1.0]) is Rescaling.DIVISION
    assert scaled([128.0], [1.0], backwards=128) is Rescaling.DIVISION
    assert scaled([2.0], [1.0]) is Rescaling.DIVISION and scaled([1.5], [1.0]) is Rescaling.CLIP
    assert scaled([2.5], [1.0]) is Rescaling.CLIP and scaled([1.0], [1.0]) is Rescaling.NONE
    assert scaled([1.0], [2.0]) is Rescaling.NONE and scaled([INF], [2.0]) is Rescaling.NONE
    assert scaled([4.0, 8.0], [1.0, 1.0]) is Rescaling.NONE  # not alike
    assert (
        scaled([4.0, 4.0004], [1.0, 1.0]) is Rescaling.DIVISION and scaled([4.0, 4.0005], [1.0, 1.0]) is Rescaling.NONE
    )
    assert scaled([4.0, 0.0], [1.0, 0.0]) is Rescaling.DIVISION and scaled([4.0, 1.0], [1.0, 0.0]) is Rescaling.NONE
    assert scaled([4.0003], [1.0]) is Rescaling.DIVISION and scaled([4.0005], [1.0]) is Rescaling.CLIP
    assert scaled([], []) is Rescaling.NONE and scaled([4.0], [1.0], unscaled_after=0) is Rescaling.NONE
    assert scaled([4.0], [1.0], arrived=((2,), 0)) is Rescaling.NONE


def test_gradients_were_divided_by_the_scale_where_the_quotient_is_that() -> None:
    def by_hand(quotient: float, scale: Any) -> bool:
        attempt = SimpleNamespace(samples=[quotient], arrived=((1,), 0))
        return unscaled_by_hand(attempt, SimpleNamespace(ids=lambda: (1,), samples=lambda like: [1.0]), scale)  # type: ignore[arg-type]

    assert by_hand(1024.0, 1024.0) and by_hand(1024.1, 1024.0) and not by_hand(1024.2, 1024.0)
    assert not by_hand(1.0, 1.0) and not by_hand(8.0, None) and not by_hand(1023.8, 1024.0) and by_hand(1023.9, 1024.0)


# -- the first attempts of a loop --------------------------------------------------------------------------------------


def test_a_plain_mean_is_one_that_nothing_divides_or_weighs() -> None:
    x = torch.ones(4, requires_grad=True)
    target = torch.zeros(4)
    plain = [
        x.mean(),
        x.mean() + (x * x).mean(),
        -x.mean(),
        nn.functional.mse_loss(x, target),
        x.mean().view(1).squeeze(),
    ]
    plain += [x.mean().double(), x.mean().clone() + x.mean() + x.mean()]
    others = [
        x.mean() / 2,
        x.sum(),
        x.mean() * 2,
        nn.functional.mse_loss(x, target, reduction="sum"),
        x.mean() + x.sum(),
    ]
    others += [x[0].clone(), x.mean() - x.mean() / 3]
    assert [is_plain_mean(loss.grad_fn, False) for loss in plain] == [True] * len(plain)
    assert [is_plain_mean(loss.grad_fn, False) for loss in others] == [False] * len(others)
    scale = torch.tensor(8.0)
    assert is_plain_mean((x.mean() * scale).grad_fn, True) and not is_plain_mean(x.mean().grad_fn, True)
    assert not is_plain_mean((x.mean() / 4 * scale).grad_fn, True) and not is_plain_mean(None, False)
    many = x.mean()
    for _ in range(10):
        many = many + x.mean()
    assert is_plain_mean(many.grad_fn, False) and not is_plain_mean(many.grad_fn, False, most=20)
    assert is_plain_mean(many.grad_fn, False, most=21)


def attempt(backwards: int = 1, scaler: Any = None, own: bool = False) -> Any:
    return SimpleNamespace(scaler=scaler, has_own_scale=own, backwards=[None] * backwards, loss_is_known=True)


def begin(attempts: int, backwards: int = 2, **more: Any) -> list[list[str]]:
    """Kinds of events after each attempt, of a loop whose losses are means that nothing divides."""
    beginning, found = Beginning(), []
    parameter = nn.Parameter(torch.ones(4))
    for _ in range(attempts):
        one = attempt(backwards, **more)
        for _ in range(backwards):
            beginning.arrives(one, [parameter.mean()], is_scaled=False, reached_all=True)
        found.append([kind for kind, _ in beginning.stepped(one, [parameter])])
        assert beginning.is_over == (len(found) >= 16)
    return found


def test_losses_that_nothing_divides_are_sure_at_the_third_attempt_and_reported_once() -> None:
    found = begin(17)
    assert [at for at, kinds in enumerate(found) if "losses_not_divided" in kinds] == [2]
    assert not any(begin(5, backwards=1))


@pytest.mark.parametrize(("dtype", "is_low"), [(torch.float16, True), (torch.bfloat16, True), (torch.float32, False)])
def test_a_loss_in_sixteen_bits_is_reported_of_parameters_in_thirty_two(dtype: torch.dtype, is_low: bool) -> None:
    for of_parameter in (torch.float32, torch.bfloat16):
        parameter = nn.Parameter(torch.ones(4, dtype=of_parameter))
        for scaler in (None, object()):
            beginning, one = Beginning(), attempt(scaler=scaler)
            beginning.arrives(one, [parameter.to(dtype).sum()], is_scaled=False, reached_all=True)
            found = dict(beginning.stepped(one, [parameter]))
            assert ("loss_low_precision" in found) == (is_low and of_parameter == torch.float32)
            if found:
                data = found["loss_low_precision"]
                assert (data["dtype"], data["scaled"]) == (str(dtype).removeprefix("torch."), scaler is not None)


@pytest.mark.parametrize(("more", "reported"), [({}, True), ({"scaler": object()}, False), ({"own": True}, False)])
def test_float16_without_a_scale_is_sure_at_the_third_attempt_in_a_row(more: dict[str, Any], reported: bool) -> None:
    beginning, found = Beginning(), []
    parameter = nn.Parameter(torch.ones(4))
    for _ in range(5):
        one = attempt(**more)
        beginning.arrives(one, [(parameter.half() * 2).float().sum()], is_scaled=False, reached_all=True)
        found.append("float16_without_scaler" in dict(beginning.stepped(one, [parameter])))
    assert found == [False, False, reported, False, False]


# -- sentinels ---------------------------------------------------------------------------------------------------------


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x)))


def test_sentinels_name_the_first_module_whose_output_is_not_finite_and_stand_for_so_many_steps() -> None:
    model = Chain()
    sentinels = Sentinels({"": model})
    with pytest.raises(ValueError, match="steps is 0"):
        sentinels.arm(5, 0)
    sentinels.arm(5, 2)
    assert sentinels.armed and sentinels.is_awake
    with torch.no_grad():
        model.second.weight[0, 0] = INF
    for step in (5, 6, 7):
        model(torch.ones(1, 3)).sum().backward()
        sentinels.step_begins(step + 1)
        assert sentinels.armed == (step == 5)
    found = sentinels.reports(wait=True)
    assert [report.step for report in found] == [5, 6] and sentinels.reports(wait=True) == []
    forward = found[0].forward
    assert forward is not None
    assert (forward["module"], forward["what"], forward["phase"]) == ("second", "output", "forward")
    assert (forward["dtype"], forward["shape"], forward["limit"]) == ("float32", [1, 3], torch.finfo(torch.float32).max)
    assert found[0].finding(NAN) == forward and found[0].finding(1.0) == found[0].backward


def test_sentinels_rest_for_a_hundred_steps_after_a_skip() -> None:
    sentinels = Sentinels({"": Chain()})
    sentinels.arm_after_skip(10)
    assert sentinels.armed
    sentinels.disarm()
    assert not sentinels.armed and not sentinels.is_awake
    sentinels.arm_after_skip(109)
    assert not sentinels.armed
    sentinels.arm_after_skip(110)
    assert sentinels.armed
    sentinels.disarm()


def test_sentinels_name_the_module_that_made_a_gradient_not_finite() -> None:
    class Rooted(Chain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.third(self.root(self.first(x)))

        def root(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(x)

    model = Rooted()
    sentinels = Sentinels({"": model})
    sentinels.arm(0, 1)
    hook = model.second.register_full_backward_pre_hook(lambda module, output: (output[0] * INF,))
    model(torch.ones(1, 3)).sum().backward()
    hook.remove()
    sentinels.step_begins(1)
    (report,) = sentinels.reports(wait=True)
    assert report.forward is None and report.backward is not None
    assert report.backward["phase"] == "backward" and report.backward["module"] in ("second", "third")


# -- ranks -------------------------------------------------------------------------------------------------------------


def test_a_ranks_column_stands_at_the_steps_that_it_has() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        own = np.flatnonzero(random.random(12) < random.choice([0.5, 1.0]))
        step = np.flatnonzero(random.random(12) < random.choice([0.5, 1.0]))
        values = random.random(len(own))
        by_step = dict(zip(own.tolist(), values.tolist(), strict=True))
        found = aligned({"step": own, "loss": values}, "loss", step)
        np.testing.assert_array_equal(found, np.array([by_step.get(at, NAN) for at in step.tolist()]))
        assert np.isnan(aligned({"step": own}, "loss", step)).all()


def test_sessions_of_two_ranks_belong_together_by_the_nearest_start() -> None:
    assert match_sessions([0, 100], [1, 99]) == [0, 1] and match_sessions([0, 100], [99]) == [None, 0]
    assert match_sessions([0, 100], [50]) == [0, None] and match_sessions([0], [40, 3]) == [1]
    assert match_sessions([], [1]) == [] and match_sessions([5], []) == [None]
    assert match_sessions([0, 10], [9, 10]) == [None, 1]  # what is nearer to another belongs there
    assert match_sessions([0, 10, 20], [1, 11, 21]) == [0, 1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_of_a_session_is_the_least_start_of_the_later_ones(seed: int) -> None:
    random = np.random.default_rng(seed)
    starts = [None if random.random() < 0.3 else int(random.integers(0, 9)) for _ in range(seed % 7)]
    known = [[start for start in starts[at + 1 :] if start is not None] for at in range(len(starts))]
    assert cuts(starts) == [min(later, default=None) for later in known]


def test_norms_of_a_whole_come_from_the_squares_of_its_parts_and_are_unknown_where_one_is() -> None:
    columns = {
        0: {"grad_norm_shard": [3.0, 3.0, NAN], "nonfinite_tensors": [0.0, 2.0, 1.0]},
        1: {"grad_norm_shard": [4.0, NAN, 4.0], "nonfinite_tensors": [0.0, 3.0, 0.0]},
    }
    for of in columns.values():
        of |= {"skipped": [0.0, 0.0, 0.0], "param_norm_shard": [6.0, 6.0, 6.0]}

    def get(rank: int, name: str) -> np.ndarray:
        return np.array(columns[rank].get(name, [NAN] * 3))

    plan = Plan([(0, 1)], [(0, 1)], sharded=frozenset({0, 1}))
    found = ranks_of._combined(plan, get, 3)
    np.testing.assert_array_equal(found["grad_norm"], [5.0, NAN, NAN])
    np.testing.assert_array_equal(found["nonfinite_tensors"], [0.0, 3.0, 1.0])
    np.testing.assert_allclose(found["param_norm"], np.full(3, math.sqrt(72)))
    assert np.isnan(found["clip_coef"]).all() and np.isnan(found["max_norm"]).all()
    lost = ranks_of._combined(Plan([(0, 1)], [(0, 1)], "why", "why", frozenset({0, 1})), get, 3)
    assert all(np.isnan(values).all() for values in lost.values())


def clipped(
    max_norm: Sequence[float], coefficient: Any = None, got: Any = None, skipped: int = 0
) -> dict[str, list[float]]:
    """Of gradients of which two ranks have 3 and 4."""
    count = len(max_norm)

    def get(rank: int, name: str) -> np.ndarray:
        known: dict[str, Any] = {
            "grad_norm_shard": [3.0 + rank] * count,
            "grad_norm_clipped_shard": got[rank] if got else [NAN] * count,
            "nonfinite_tensors": [0.0] * count,
            "max_norm": max_norm,
            "skipped": [float(skipped)] * count,
            "clip_coef": coefficient or [NAN] * count,
        }
        return np.array(known.get(name, [NAN] * count), float)

    found = ranks_of._combined(Plan([(0, 1)], [], sharded=frozenset({0, 1})), get, count)
    return {name: values.tolist() for name, values in found.items()}


def test_the_clip_of_sharded_gradients_follows_from_their_whole_norm() -> None:
    found = clipped([1.0, 9.0])
    assert found["clip_coef"] == pytest.approx([1 / (5 + 1e-6), 1.0], rel=1e-12) and found["max_norm"] == [1.0, 9.0]
    assert found["grad_norm_clipped"] == pytest.approx([5 / (5 + 1e-6), 5.0], rel=1e-12)
    assert clipped([1.0], coefficient=[0.25])["clip_coef"] == [0.25]
    assert clipped([1.0], got=[[1.5], [2.0]])["grad_norm_clipped"] == [2.5]  # as measured
    assert clipped([1.0], got=[[1.5], [2.0]])["clip_coef"] == [0.5]
    near = 1.00005 / 5
    assert clipped([1.0], got=[[3 * near], [4 * near]])["clip_coef"] == pytest.approx([1 / (5 + 1e-6)], rel=1e-12)
    apart = 1.0002 / 5
    assert clipped([1.0], got=[[3 * apart], [4 * apart]])["clip_coef"] == pytest.approx([apart], rel=1e-12)
    assert math.isnan(clipped([1.0], skipped=1)["clip_coef"][0])


def test_several_sets_of_tensors_make_one_norm_and_one_clip_where_they_agree() -> None:
    columns = {0: {"grad_norm": 3.0, "clip_coef": 0.5, "grad_norm_clipped": 1.5, "nonfinite_tensors": 1.0}}
    columns[1] = {"grad_norm": 4.0, "clip_coef": 0.5, "grad_norm_clipped": 2.0, "nonfinite_tensors": 2.0}

    def found() -> dict[str, float]:
        def get(rank: int, name: str) -> np.ndarray:
            return np.array([columns[rank].get(name, NAN)])

        return {name: float(of[0]) for name, of in ranks_of._combined(Plan([(0,), (1,)], [(0,), (1,)]), get, 1).items()}

    same = found()
    assert (same["grad_norm"], same["clip_coef"], same["grad_norm_clipped"], same["nonfinite_tensors"]) == (
        5,
        0.5,
        2.5,
        3,
    )
    columns[1] |= {"clip_coef": 0.25, "grad_norm_clipped": 1.0}
    assert found()["clip_coef"] == pytest.approx(math.hypot(1.5, 1.0) / 5)


def test_parts_are_the_whole_where_every_element_is_on_one_rank_that_counts() -> None:
    def layout(owned: str, elements: Sequence[int], **more: Any) -> dict[str, Any]:
        return {"of_whole": [10, 6], "elements": list(elements), "gradients": {"owned": owned, **more}}

    def why(*layouts: dict[str, Any]) -> str | None:
        return ranks_of._incomplete(layouts, "gradients")

    assert why(layout("11", [5, 6]), layout("10", [5, 6])) is None and why() is None
    assert why(layout("11", [5, 6]), layout("10", [4, 6])) == (
        "the parts of parameter 0 have 9 elements together, and the whole has 10"
    )
    assert why(layout("11", [10, 6]), layout("01", [0, 6])) == (
        "the parts of parameter 1 have 12 elements together, and the whole has 6"
    )
    assert why(layout("10", [10, 6])) is not None and why(layout("10", [10, 6], unknown={"tensor": "x"})) is None
    assert why(layout("11", [9, 6], unknown={"tensor": "x"})) is not None


# -- columns that grow -------------------------------------------------------------------------------------------------


def test_columns_that_grow_hold_every_row_in_order_and_views_keep_theirs() -> None:
    random = np.random.default_rng(0)
    columns, rows, views = GrowingColumns(), [], []
    for part in range(12):
        names = ["step", "loss", "skipped"] if part < 6 else ["step", "loss", "skipped", "lr"]
        kinds = {"step": "<i8", "skipped": "|b1"}
        count = int(random.choice([0, 1, 7, 900, 5000]))
        block = np.zeros(count, [(name, kinds.get(name, "<f8")) for name in names])
        for name in names:
            block[name] = random.integers(0, 2, count) if name != "step" else np.arange(count) + len(rows)
        columns.append(block)
        rows += [{name: block[name][at] for name in names} for at in range(count)]
        views.append((len(rows), columns.views()))
        assert columns.count == len(rows) and columns.last_step() == (len(rows) - 1 if rows else None)
    for count, view in views:
        assert all(len(values) == count for values in view.values())
        assert view["step"].tolist() == list(range(count))
        assert view["loss"].tolist() == [row["loss"] for row in rows[:count]] if count else True
    last = views[-1][1]
    assert np.isnan(last["lr"]).tolist() == ["lr" not in row for row in rows]
    assert last["skipped"].tolist() == [bool(row["skipped"]) for row in rows]
    with pytest.raises(ValueError):
        last["loss"][0] = 1.0
    assert [columns.before(cut) for cut in (None, 0, 5, 10**9)] == [len(rows), 0, 5, len(rows)]
    alone = columns.last_alone()
    assert (alone.count, alone.last_step()) == (1, len(rows) - 1) and GrowingColumns().last_alone().count == 0
    other = GrowingColumns()
    other.extend(columns, 3, 10)
    other.extend(columns, 0, 0)
    assert other.views()["step"].tolist() == list(range(3, 10)) and other.count == 7


def test_totals_are_of_the_first_rows_and_of_what_is_known_in_them() -> None:
    columns = GrowingColumns()
    kinds = [("step", "<i8"), ("loss", "<f8"), ("skipped", "|b1"), ("loss_scale", "<f8"), ("wall_time", "<f8")]
    rows = [(3, 2.0, False, NAN, NAN), (4, INF, True, 8.0, 10.0), (5, 1.5, False, 4.0, 11.0), (6, 0.5, True, 2.0, 12.0)]
    columns.append(np.array(rows, kinds))
    totals = columns.totals(3)
    assert (totals.first_step, totals.last_step, totals.steps, totals.skipped_steps) == (3, 5, 3, 1)
    assert (totals.last_loss_scale, totals.best_loss, totals.first_wall_time, totals.last_wall_time) == (
        4.0,
        1.5,
        10.0,
        11.0,
    )
    assert columns.totals(0).steps == 0 and columns.totals(0).first_step == -1
    one = columns.totals(1)
    assert math.isnan(one.last_loss_scale) and math.isnan(one.first_wall_time) and one.best_loss == 2.0


def test_a_scaler_that_is_gone_leaves_nothing_to_look_for() -> None:
    scaler = torch.amp.GradScaler("cpu")
    loss = torch.ones(1, requires_grad=True).sum()
    output = scaler.scale(loss)
    scaled_losses.remember(scaler, loss, output)
    key = id(scaler)
    found = scaled_losses.scaled_by_last(output)
    assert key in scaled_losses._scalers._refs and found is not None and found.scaler is scaler and found.loss == 1.0
    assert scaled_losses.scaled_by([output * 2]) is not None and scaled_losses.scaled_by_last(output * 2) is None
    del scaler, found
    assert key not in scaled_losses._scalers._refs and scaled_losses.scaled_by_last(output) is None
