"""Puts together what the hooks see into steps.

`StepObserver` is told by the hooks what the loop does (a loss was scaled, its backward ran, gradients were
unscaled, clipped, used, the scale was updated) and hands on one `StepRecord` for each step and a `Sighting` for each
thing worth an event. It decides when a step closes, what is measured and when, and nothing else: it knows of no
file, no format and no opinion.

A step is one attempt to update. With an enabled scaler it closes at `scaler.update()` if `scaler.step` was called
since the last one. Without, it closes when the optimizer has stepped; with several optimizers, when all have
stepped or one steps again.
"""

from __future__ import annotations

import enum
import math
import operator
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tbnum.measure.change import changes_of, copies_of
from tbnum.measure.chunks import stored
from tbnum.measure.norms import Taken, norms_of
from tbnum.measure.statistics import statistics_of
from tbnum.observe.caller import steps_on_the_stack, users_line
from tbnum.observe.gradients import Before, Gradients, carries_scale, dtypes_behind, leads_to, local, parameters_of
from tbnum.observe.records import (
    UNKNOWN,
    Change,
    Histograms,
    Measurement,
    OpenOptimizer,
    Pending,
    Rows,
    Sighting,
    Stage,
    StepRecord,
    Update,
)
from tbnum.observe.shards import Layouts
from tbnum.observe.transfer import Number, capturing, hold
from tbnum.observe.watcher import Watcher, harmless

__all__ = ["StepObserver"]


class Mark(NamedTuple):
    """How far the loop was before a backward."""

    backwards: int  # that were seen in the step
    before: Before


class Cover(enum.Enum):
    """What a clip covers of an optimizer's gradients."""

    SOME = enum.auto()
    ALL = enum.auto()
    ALL_AND_NO_OTHERS = enum.auto()  # looked for only where tensors are spread over ranks


LOOKED_AT = 8  # parameters whose gradients tell of a backward, where every backward is this loop's
STRANGERS = 8  # backwards in another thread after which it is taken to be another loop's
VANISHING = 1e-16  # a norm of many gradients below it may have lost some of them, whose squares float32 does not hold
MAX_PENDING = 256  # steps whose device values may be under way; a device is never that far behind its host


class StepObserver(Watcher):
    """Follows the loop of some optimizers, and a scaler or none, from what the hooks tell it.

    Holds optimizers and scaler weakly. Every method that hooks call is cheap where there is nothing to do, never
    raises into the loop for trouble of its own, and adds no host sync (CPU tensors are read as they are).
    """

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
        *,
        on_step: Callable[[StepRecord], None],
        on_sighting: Callable[[Sighting], None],
        on_first_step: Callable[[], None],
        on_close: Callable[[int], None],
        verify_interval: int,
        tensor_interval: int,
        histogram_interval: int,
        layouts: Layouts,
    ) -> None:
        super().__init__("follow a step and goes on without it")
        self._optimizers = {name: weakref.ref(optimizer) for name, optimizer in optimizers.items()}
        self._name_of = {id(optimizer): name for name, optimizer in optimizers.items()}
        self._scaler = None if scaler is None else weakref.ref(scaler)
        self._on_step = on_step
        self._on_sighting = on_sighting
        self._on_first_step: Callable[[], None] | None = on_first_step
        self._on_close = on_close
        self._verify_interval = verify_interval
        self._tensor_interval = tensor_interval
        self._histogram_interval = histogram_interval
        self._layouts = layouts
        self.next_step = 0
        self._open: dict[str, OpenOptimizer] = {}
        self._losses: list[Number] = []
        self._logged_losses: list[Number] = []
        self._closure_losses: list[Number] = []
        self._backwards: list[int] = []  # the autograd engine's numbers of them
        self._of_the_step = (0, 0, 0)  # how many losses, logged losses and backwards there were at the last step
        self._loss_scale: Number = UNKNOWN
        self._scale_was_seen = False
        self._in_scaler_step: str | None = None
        self._pending: deque[Pending] = deque()
        self._thread = threading.get_ident()  # in which the loop runs
        self._strangers: Counter[int] = Counter()  # backwards of others, by thread
        self._looks_at_all = False  # at every gradient, to tell whose backward it was
        self._seen_once: set[tuple[str, str | None]] = set()
        self._without_gradients: set[str] = set()

    # -- what the hooks ask ------------------------------------------------------------------------------------

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        scaler = None if self._scaler is None else self._scaler()
        return scaler if scaler is not None and scaler.is_enabled() else None

    @property
    def backward_began(self) -> bool:
        """Whether the open step has got as far as its gradients."""
        return bool(self._backwards or self._open)

    def _is_inside_a_step(self) -> bool:
        """An optimizer runs a backward of its own, say. Forgets a step that ended in an exception."""
        if threading.get_ident() != self._thread:
            return False
        stepping = [name for name, one in self._open.items() if one.stage is Stage.STEPPING]
        if not stepping:
            return False
        optimizers = self.optimizers()
        if any(name in optimizers and steps_on_the_stack(optimizers[name]) for name in stepping):
            return True
        for name in stepping:
            del self._open[name]
        if not self._open:
            self._clear()
        return False

    def name_of(self, optimizer: torch.optim.Optimizer) -> str | None:
        name = self._name_of.get(id(optimizer))
        return name if name is not None and self._optimizers[name]() is optimizer else None

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Those that are still alive."""
        alive = {name: ref() for name, ref in self._optimizers.items()}
        return {name: optimizer for name, optimizer in alive.items() if optimizer is not None}

    # -- losses ------------------------------------------------------------------------------------------------

    @harmless
    def loss_logged(self, loss: Number) -> None:
        """The user told of a loss. Where that happens in a step, only what the user told counts."""
        if not self._is_inside_a_step():
            self._logged_losses.append(loss)

    @harmless
    def closure_returned(self, loss: Any) -> None:
        """What the closure of `optimizer.step(closure)` gave back, at its first call."""
        if isinstance(loss, Tensor) and loss.numel() == 1 and not loss.is_complex():
            self._closure_losses = [hold(loss)]
        elif isinstance(loss, (int, float)):
            self._closure_losses = [float(loss)]

    @harmless
    def loss_scaled(self, loss: Tensor, scaled: Tensor) -> None:
        """`scaler.scale(loss)` gave `scaled`: note the loss when its backward runs."""
        self._follow(loss, scaled)
        if self.scaler is None:
            return
        if not self._scale_was_seen:
            self._scale_was_seen = True
            dtypes = dtypes_behind(loss)
            if torch.bfloat16 in dtypes and torch.float16 not in dtypes:
                self._sight_once("bfloat16_with_scaler", {"where": users_line()})
        if loss.dtype in (torch.float16, torch.bfloat16):
            dtype = str(loss.dtype).removeprefix("torch.")
            self._sight_once("loss_low_precision", {"dtype": dtype, "where": users_line()})

    def _follow(self, loss: Tensor, scaled: Tensor) -> None:
        """The hook keeps the value alone: no graph, no observer alive."""
        if not scaled.requires_grad or loss.is_complex():
            return
        value, ref, device = _summed(loss), weakref.ref(self), scaled.device.type

        def backward_begins(gradient: Any) -> None:
            observer = ref()
            if observer is None:
                return
            if observer.scaler is not None and any(map(torch.is_autocast_enabled, {"cpu", device})):
                observer.backward_under_autocast()
            if not torch.is_grad_enabled():  # with create_graph it is a part of a loss to come: a gradient penalty, say
                observer.backward_ran(value, torch._C._current_graph_task_id())

        if scaled is not loss:
            scaled.register_hook(backward_begins)
        elif scaled.grad_fn is not None:
            # A disabled scaler gives back the user's own tensor, on which a hook would be in the way of saving it.
            scaled.grad_fn.register_prehook(backward_begins)

    @harmless
    def backward_ran(self, loss: Number, graph_task: int) -> None:
        """The backward of a loss that was given to the scaler has begun, without `create_graph`."""
        self._losses.append(loss)
        if graph_task not in self._backwards:
            self._backwards.append(graph_task)

    @harmless
    def backward_begins(self, losses: Sequence[Any]) -> Mark | None:
        """Before any backward. None where it does not matter, else to be given to `backward_ended`."""
        if self.scaler is not None or capturing() or not self._is_in_its_thread(losses) or self._is_inside_a_step():
            return None
        most = None if self._looks_at_all else LOOKED_AT
        return Mark(len(self._backwards), Before.of(self.optimizers().values(), most))

    def _is_in_its_thread(self, losses: Sequence[Any]) -> bool:
        """Loops may run side by side, each in a thread of its own. Of one that goes on in another the loss tells."""
        thread = threading.get_ident()
        if thread != self._thread and self._strangers[thread] < STRANGERS:
            if leads_to(losses, self._parameters()):
                self._thread = thread
            else:
                self._strangers[thread] += 1
        return thread == self._thread

    def _parameters(self) -> list[Tensor]:
        return [each for optimizer in self.optimizers().values() for each in parameters_of(optimizer)]

    @harmless
    def backward_ended(self, mark: Mark, losses: Sequence[Any]) -> None:
        """The backward of `losses` has run, without an enabled scaler and without `create_graph`."""
        if len(self._backwards) > mark.backwards:
            return  # a disabled scaler told of it
        if not mark.before.have_changed() and not self._layouts.unreduced_have_changed():
            looked_at_all, self._looks_at_all = self._looks_at_all, True
            with_gradient = [each for each in self._parameters() if each.grad is not None]
            if looked_at_all or not leads_to(losses, with_gradient):  # else it was one of those not looked at
                return
        found = [_summed(loss) for loss in losses if isinstance(loss, Tensor) and not loss.is_complex()]
        if found:
            self._losses += found
            self._backwards.append(-1 - len(self._backwards))  # its number in the engine is not known any more

    # -- the scaler --------------------------------------------------------------------------------------------

    @harmless
    def unscaled(self, optimizer: torch.optim.Optimizer) -> None:
        """`scaler.unscale_(optimizer)` has run: the gradients carry no scale now."""
        name = self.name_of(optimizer)
        scaler = self.scaler
        if name is None or scaler is None or capturing():
            return
        if self._has_stepped(name):  # torch refuses to unscale before `update()`: that was interrupted
            self._close_without_what_came_since()
        one = self._opened(name)
        one.backwards_unscaled = len(self._backwards)
        if self._scale_was_seen and not self._backwards:
            self._sight_once("loss_not_scaled", {"where": users_line()}, name)
        self._loss_scale = _held_scale(scaler)
        if one.clipped:  # before unscale_: `before` was measured then, under the scale
            one.uncertain = True
            one.seen = Gradients.of(optimizer)
            return
        self._measure(name, optimizer, Gradients.of(optimizer), 1.0)

    @harmless
    def unscale_refused(self, optimizer: torch.optim.Optimizer) -> None:
        """`scaler.unscale_(optimizer)` has raised."""
        name = self.name_of(optimizer)
        if name is None:
            return
        gradients = Gradients.of(optimizer).tensors
        half = sum(gradient.dtype == torch.float16 for gradient in gradients)
        if half:
            data = {"where": users_line(), "float16": half, "tensors": len(gradients)}
            self._sight_once("float16_gradients", data, name)

    @harmless
    def scaler_step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        name = self.name_of(optimizer)
        scaler = self.scaler
        if name is None or scaler is None or capturing():
            return
        self._in_scaler_step = name
        if self._has_stepped(name) and carries_scale(scaler, optimizer):  # likewise
            self._close_without_what_came_since()
        one = self._open.get(name)
        if one is None:
            return
        if one.stage is Stage.STEPPED:
            self._sight_once("update_missing", {"where": users_line()}, name)
        elif one.backwards_unscaled is not None and len(self._backwards) > one.backwards_unscaled:
            # Else the later backward was another optimizer's alone.
            changed = not Gradients.of(optimizer).same_as(one.seen)
            if changed:
                self._sight_once("unscale_in_accumulation", {"where": users_line()}, name)

    @harmless
    def scaler_step_ended(self, optimizer: torch.optim.Optimizer, failed: bool) -> None:
        name, self._in_scaler_step = self._in_scaler_step, None
        scaler = self.scaler
        if name is None or scaler is None:
            return
        if failed:
            one = self._open.get(name)
            if one is not None and one.stage is not Stage.STEPPED:
                if not Gradients.of(optimizer).tensors:
                    self._sight_without_gradients(name, optimizer)
                self._open.pop(name, None)
            return
        one = self._opened(name)
        state = scaler._per_optimizer_states.get(id(optimizer))
        if state is not None:
            one.found_inf = [hold(found_inf) for found_inf in state["found_inf_per_device"].values()]
        if one.stage is not Stage.STEPPED:  # the step hooks did not fire: the scaler asked the host, and skipped
            one.lr = _learning_rates(optimizer)
            self._has_now_stepped(one)
            skipped = True
        else:  # a fused kernel may have skipped inside; known here only where found_inf lives on the host
            skipped = any(found_inf for found_inf in one.found_inf if isinstance(found_inf, float))
        if skipped and one.rows is None and not one.clipped:
            # On a device the norms did not tell the host. A clip would have turned inf into NaN by now.
            self._look_closely(one, Gradients.of(optimizer), one.before.divisor)
        if skipped:
            one.parameters_nonfinite = _any_nonfinite(parameters_of(optimizer))

    @harmless
    def update_begins(self, new_scale: float | Tensor | None) -> Update | None:
        """Before `scaler.update(new_scale)`. What it returns is to be given to `update_ended`."""
        inside = None if self._in_scaler_step is None else self._optimizers[self._in_scaler_step]()
        if inside is not None:  # a scaler whose step updates by itself
            self.scaler_step_ended(inside, failed=False)
        scaler = self.scaler
        if scaler is None or scaler._scale is None or scaler._growth_tracker is None or capturing():
            return None
        return Update(
            old_scale=hold(scaler._scale),
            growth_tracker=hold(scaler._growth_tracker),
            was_set=new_scale is not None,
        )

    @harmless
    def update_ended(self, update: Update) -> None:
        scaler = self.scaler
        if scaler is None or scaler._scale is None:
            return
        update.new_scale = hold(scaler._scale)
        if any(one.stage is Stage.STEPPED for one in self._open.values()):
            self._close(update)
            return
        self._clear()  # unscaled and abandoned, or the step of an optimizer that is not ours: the next begins anew
        self._settle(Pending(max(self.next_step - 1, 0), time.time(), update))

    # -- the optimizer -----------------------------------------------------------------------------------------

    @harmless
    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Inside `optimizer.step()`, with the gradients that it will use (after a closure's first return)."""
        name = self.name_of(optimizer)
        if name is None or capturing():
            return
        scaler = self.scaler
        if scaler is not None and self._in_scaler_step is None:
            self._sight_once("step_bypassed_scaler", {"where": users_line()}, name)
            return
        if scaler is None and self._has_stepped(name):
            self._close_without_what_came_since()
        if name in self._open and self._open[name].stage is Stage.STEPPING:
            del self._open[name]  # the step before ended in an exception
        self._thread = threading.get_ident()
        self._strangers.pop(self._thread, None)
        one = self._opened(name)
        one.lr = _learning_rates(optimizer)
        grad_scale = getattr(optimizer, "grad_scale", None) if scaler is not None else None
        divisor: Number = 1.0
        if isinstance(grad_scale, Tensor):  # a fused optimizer that will unscale in its kernel
            divisor = hold(grad_scale)
            self._loss_scale = divisor
        gradients = Gradients.of(optimizer)
        if one.stage is Stage.COLLECTING or self._was_clipped_too_early(one, gradients):
            self._measure(name, optimizer, gradients, divisor)
        elif self._must_look_again(one, gradients):
            one.after = _measured(gradients.tensors, divisor)
        if not one.places:
            # Of flat parameters those that have a gradient may all lie on other ranks.
            if one.layout is None or not one.layout.has_flat_parameters:
                self._sight_without_gradients(name, optimizer)
        else:
            self._without_gradients.discard(name)
        if self.next_step % self._tensor_interval == 0:
            one.snapshot = copies_of(local(parameters_of(optimizer)))
        one.stage = Stage.STEPPING

    @harmless
    def step_ended(self, optimizer: torch.optim.Optimizer) -> None:
        name = self.name_of(optimizer)
        one = None if name is None else self._open.get(name)
        if one is None or one.stage is not Stage.STEPPING or capturing():
            return
        if one.snapshot:
            self._measure_update(one, optimizer)
        self._has_now_stepped(one)
        if self.scaler is None and all(map(self._has_stepped, self.optimizers())):
            self._close(None)

    # -- clipping ----------------------------------------------------------------------------------------------

    @harmless
    def clip_begins(
        self, parameters: Sequence[Tensor], max_norm: float | None, taken: Taken | None = None
    ) -> dict[str, Cover]:
        """Before gradients are clipped, by norm or (`max_norm` None) by value. `taken` are their norms as they are now.

        Returns the names of the optimizers that the clip touches, and what of their gradients it covers; to be given
        to `clip_ended`.
        """
        if capturing():
            return {}
        clipped: set[int] = set()
        touched: dict[str, Cover] = {}
        for name, optimizer in self.optimizers().items():
            its_own = parameters_of(optimizer)
            is_all = len(parameters) == len(its_own) and all(map(operator.is_, parameters, its_own))
            if not is_all:  # which is rare, and takes longer to look at
                clipped = clipped or set(map(id, parameters))
                # Only then look at gradients: those of another loop may be written by another thread just now.
                if clipped.isdisjoint(map(id, its_own)):
                    continue
            gradients = Gradients.of(optimizer)
            one = self._open.get(name)
            if max_norm == math.inf:  # no clip: a way to ask for the norm, which multiplies by one
                if one is not None and gradients.same_as(one.seen):
                    touched[name] = Cover.SOME
                continue
            if one is not None and one.stage is Stage.STEPPED:
                if self.scaler is not None:
                    continue  # between step() and update() a clip changes nothing that counts
                self._close_without_what_came_since()
            if one is None and self._are_left_over(gradients):
                continue
            # Tied parameters that are listed twice are clipped twice, by a coefficient that is not theirs.
            is_once = is_all or len(clipped) == len(parameters)
            whole = is_all or (is_once and all(id(its_own[place]) in clipped for place in gradients.places))
            touched[name] = Cover.ALL if whole else Cover.SOME
            self._before_clip(name, optimizer, gradients, max_norm, taken)
            if whole and self._open[name].layout is not None and clipped.issubset(map(id, its_own)):
                touched[name] = Cover.ALL_AND_NO_OTHERS
        return touched

    def _before_clip(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        gradients: Gradients,
        max_norm: float | None,
        taken: Taken | None,
    ) -> None:
        one = self._opened(name)
        scaler = self.scaler
        if not gradients.same_as(one.seen):
            divisor: Number = 1.0
            if scaler is not None and carries_scale(scaler, optimizer) and scaler._scale is not None:
                divisor = hold(scaler._scale)
                self._loss_scale = divisor
                where = {"where": users_line(), "max_norm": max_norm, "loss_scale": _on_host(divisor)}
                self._sight_once("clip_before_unscale", where, name)
            if one.stage is Stage.COLLECTING or scaler is None:
                # Without a scaler a later backward may have added to them.
                self._measure(name, optimizer, gradients, divisor, taken)
            else:
                one.uncertain = True
        one.clipped = True
        one.backwards_clipped = len(self._backwards)

    def _are_left_over(self, gradients: Gradients) -> bool:
        """Under a scaler, before the first backward of a step: gradients of the last step, which carry no scale."""
        return self.scaler is not None and not self._backwards and (self._scale_was_seen or not gradients.tensors)

    def _was_clipped_too_early(self, one: OpenOptimizer, gradients: Gradients) -> bool:
        """Without a scaler: a backward came after the clip, which was one of the last step's gradients, say."""
        return (
            self.scaler is None
            and one.clipped
            and len(self._backwards) > one.backwards_clipped
            and not gradients.same_as(one.seen)
        )

    @harmless
    def clip_ended(
        self, touched: Mapping[str, Cover], max_norm: float | None, total_norm: Tensor | None, *, is_2_norm: bool
    ) -> None:
        """After the clip. `total_norm` is the norm that the clip went by; `is_2_norm` only where that is sure."""
        for name, cover in touched.items():
            one = self._open.get(name)
            if one is None:
                continue
            if max_norm == math.inf:
                one.seen = None if one.seen is None else one.seen.again()
                continue
            if max_norm is not None:
                one.max_norms.add(max_norm)
            if cover is Cover.SOME or max_norm is None or total_norm is None:
                one.uncertain = True
            elif hasattr(total_norm, "_local_tensor"):
                # Its value may take a collective. It is the norm before the clip, which the reader of the log has.
                exact = is_2_norm and cover is Cover.ALL_AND_NO_OTHERS
                if exact and not (one.coefficients or one.clip_is_derived):
                    one.clip_is_derived = True
                else:
                    one.uncertain = True
            elif one.clip_is_derived:
                one.uncertain = True
            else:
                one.coefficients.append(_coefficient(max_norm, hold(total_norm)))
            if one.seen is not None:
                is_known = cover is not Cover.SOME and max_norm is not None
                one.seen = one.seen.multiplied() if is_known else one.seen.again()

    # -- closing -----------------------------------------------------------------------------------------------

    @harmless
    def drain(self, wait: bool = False) -> None:
        """Hand on the steps whose values have reached the host, in order. With `wait`, all."""
        while self._pending and (wait or len(self._pending) > MAX_PENDING or self._pending[0].ready()):
            self._hand_on(self._pending.popleft())

    @harmless
    def finish(self) -> None:
        """Close a step that only some optimizers have taken, and hand on everything."""
        if any(one.stage is Stage.STEPPED for one in self._open.values()):
            self._close(None)
        self._clear()
        self.drain(wait=True)

    def _has_stepped(self, name: str) -> bool:
        return name in self._open and self._open[name].stage is Stage.STEPPED

    def _has_now_stepped(self, one: OpenOptimizer) -> None:
        one.stage = Stage.STEPPED
        self._of_the_step = (len(self._losses), len(self._logged_losses), len(self._backwards))

    def expect_first_step(self, on_first_step: Callable[[], None]) -> None:
        """Call once more before the next step begins: a checkpoint was loaded."""
        self._on_first_step = on_first_step

    def _opened(self, name: str) -> OpenOptimizer:
        if self._on_first_step is not None:
            on_first_step, self._on_first_step = self._on_first_step, None
            on_first_step()
        return self._open.setdefault(name, OpenOptimizer())

    def _clear(self) -> None:
        self._open = {}
        self._losses = []
        self._logged_losses = []
        self._closure_losses = []
        self._backwards = []
        self._of_the_step = (0, 0, 0)
        self._loss_scale = UNKNOWN

    def _close_without_what_came_since(self) -> None:
        """One of several optimizers begins anew: losses since the last step are the next step's."""
        losses, logged, backwards = self._of_the_step
        later = self._losses[losses:], self._logged_losses[logged:], self._backwards[backwards:]
        del self._losses[losses:], self._logged_losses[logged:], self._backwards[backwards:]
        self._close(None)
        self._losses, self._logged_losses, self._backwards = later

    def _close(self, update: Update | None) -> None:
        self._on_close(self.next_step + 1)  # first, so that what it sends to the host is there before the step is
        losses = self._logged_losses or self._losses or self._closure_losses
        micro_batches = len(self._backwards) or len(losses)
        stepped = {name: one for name, one in self._open.items() if one.stage is Stage.STEPPED}
        for one in stepped.values():
            one.seen = None  # the gradients are not ours to keep alive while the numbers are on their way
        pending = Pending(
            self.next_step,
            time.time(),
            update,
            micro_batches=micro_batches or UNKNOWN,
            losses=losses,
            loss_scale=self._loss_scale,
            optimizers=stepped,
        )
        self.next_step += 1
        self._clear()
        self._settle(pending)

    def _settle(self, pending: Pending) -> None:
        self._pending.append(pending)
        self.drain()

    def _hand_on(self, pending: Pending) -> None:
        record, scales = pending.land()
        if record is not None:
            self._on_step(record)
        if scales is None:
            return
        old, new = scales
        if pending.scale_was_set:
            kind = "scale_set"
        elif new != old:
            kind = "scale_growth" if new > old else "scale_backoff"
        else:
            return
        self._on_sighting(Sighting(kind, pending.step, pending.wall_time, {"old_scale": old, "new_scale": new}))

    # -- measuring ---------------------------------------------------------------------------------------------

    def _measure(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        gradients: Gradients,
        divisor: Number,
        taken: Taken | None = None,
    ) -> None:
        """The norms of the gradients as they are now, before clipping; forgets an earlier measurement."""
        one, interval_is_over = self._opened(name), self.next_step % self._tensor_interval == 0
        one.parameters, one.places, one.seen = gradients.parameters, gradients.places, gradients
        one.layout = self._layouts.of(name, optimizer, gradients, look_again=interval_is_over)
        one.before = _measured(gradients.tensors, divisor, taken)
        one.coefficients, one.max_norms = [], set()
        one.clipped = one.uncertain = one.clip_is_derived = False
        one.stage = Stage.MEASURED
        failed = any(isinstance(count, float) and count > 0 for count in one.before.nonfinite)
        if failed or interval_is_over:
            self._look_closely(one, gradients, divisor)

    def _look_closely(self, one: OpenOptimizer, seen: Gradients, divisor: Number) -> None:
        """Statistics of each gradient, and their histogram: one more pass."""
        gradients = local(seen.tensors)
        # What backward made was the gradient times the scale: that is what has to fit into a narrow format.
        known = not (isinstance(self._loss_scale, float) and math.isnan(self._loss_scale))
        scale = self._loss_scale / divisor if known else 1.0
        statistics = statistics_of(gradients, scale, histograms=self._histograms_due())
        histograms = Histograms.beside(statistics)
        if one.layout is not None and one.layout.gradients.copies:
            copies = one.layout.gradients.copies
            histograms = histograms.without(
                [each for each, at in zip(gradients, seen.places, strict=True) if at in copies]
            )
        one.rows = Rows(statistics, histograms, divisor)

    def _histograms_due(self) -> bool:
        return self.next_step % self._histogram_interval == 0

    def _must_look_again(self, one: OpenOptimizer, gradients: Gradients) -> bool:
        if one.uncertain or not gradients.same_as(one.seen):
            one.uncertain = True
            return True
        return one.clipped and self.next_step % self._verify_interval == 0

    def _measure_update(self, one: OpenOptimizer, optimizer: torch.optim.Optimizer) -> None:
        before, one.snapshot = one.snapshot, []
        after = [parameter.detach() for parameter in local(parameters_of(optimizer))]
        if len(after) == len(before):  # else the step itself added a group
            changes = changes_of(before, after)
            norms = {"parameter": norms_of(after), "update": norms_of(changes)}
            due = self._histograms_due()
            histograms = {"parameter": Histograms.of(after, due), "update": Histograms.of(changes, due)}
            if one.layout is not None and one.layout.parameters.copies:
                for source, tensors in (("parameter", after), ("update", changes)):
                    histograms[source] = histograms[source].without(
                        [tensors[at] for at in one.layout.parameters.copies]
                    )
            one.change = Change(norms, histograms)

    # -- sightings ---------------------------------------------------------------------------------------------

    def sight(self, kind: str, data: Mapping[str, Any], optimizer: str | None = None) -> None:
        self._on_sighting(Sighting(kind, self.next_step, time.time(), data, optimizer))

    def _sight_once(self, kind: str, data: Mapping[str, Any], optimizer: str | None = None) -> None:
        """A mistake in the loop is made at every step: one event for each place in the user's code."""
        key = (kind, data.get("where"))
        if key not in self._seen_once:
            self._seen_once.add(key)
            self.sight(kind, data, self._label(optimizer))

    @harmless
    def backward_under_autocast(self) -> None:
        self._sight_once("backward_under_autocast", {"where": users_line()})

    def _sight_without_gradients(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        if name not in self._without_gradients:
            self._without_gradients.add(name)
            self.sight("no_gradients", {"parameters": len(parameters_of(optimizer))}, self._label(name))

    def _label(self, name: str | None) -> str | None:
        return name if len(self._optimizers) > 1 else None


def _measured(gradients: list[Tensor], divisor: Number, taken: Taken | None = None) -> Measurement:
    """One pass over the gradients, where torch has not just taken it, and two small kernels a device."""
    by_torch = None if taken is None else taken.of(gradients)
    gradients = local(gradients) if by_torch is None else gradients
    norms = norms_of(gradients) if by_torch is None else [by_torch]
    totals: list[Number] = [hold(each.total()) for each in norms]
    if totals and all(isinstance(total, float) and total < VANISHING for total in totals):
        norms = norms_of(gradients, torch.float64)  # all of them are so small that their squares vanish in float32
        totals = [hold(each.total()) for each in norms]
    nonfinite: list[Number] = []
    for each, total in zip(norms, totals, strict=True):
        if isinstance(total, Tensor):
            nonfinite.append(each.nonfinite())
        elif math.isfinite(total):
            nonfinite.append(0.0)
        else:
            # Finite elements beyond 1e19 have an infinite norm as well: look at the elements themselves.
            suspects = [at for at, norm in zip(each.index, each.norms.tolist(), strict=True) if not math.isfinite(norm)]
            nonfinite.append(float(sum(not bool(torch.isfinite(stored(gradients[at])).all()) for at in suspects)))
    return Measurement(norms, totals, nonfinite, divisor)


def _learning_rates(optimizer: torch.optim.Optimizer) -> list[Number]:
    return [_as_number(group.get("lr", UNKNOWN)) for group in optimizer.param_groups]


def _as_number(value: Any) -> Number:
    if isinstance(value, Tensor):
        return hold(value)
    return UNKNOWN if value is None else float(value)  # an optimizer may choose its own, and have None


def _summed(loss: Tensor) -> Number:
    loss = loss.detach()
    if loss.numel() != 1:
        loss = loss.sum(dtype=torch.float32 if loss.dtype.itemsize < 4 else None)
    return hold(loss)


def _on_host(number: Number) -> float:
    """The value where the host has it already, else NaN: asking a device would make the host wait."""
    return number if isinstance(number, float) else UNKNOWN


@torch.no_grad()
def _any_nonfinite(tensors: list[Tensor]) -> Number | None:
    """1.0 where any element of any tensor is NaN or inf; one pass over them."""
    if not tensors or len({tensor.device for tensor in tensors}) > 1:
        return None
    (norms,) = norms_of(local(tensors))
    return hold((norms.nonfinite() > 0).to(torch.float32))


def _coefficient(max_norm: float, total_norm: Number) -> Number:
    """torch's rule: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html"""
    coefficient = max_norm / (total_norm + 1e-6)
    if isinstance(coefficient, Tensor):
        return coefficient.clamp(max=1.0)
    return coefficient if coefficient < 1.0 or math.isnan(coefficient) else 1.0


def _held_scale(scaler: torch.amp.GradScaler) -> Number:
    return UNKNOWN if scaler._scale is None else hold(scaler._scale)
