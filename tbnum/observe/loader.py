"""Which samples a step was made of: the indices that a `DataLoader` draws, followed to the backward that uses them.

A DataLoader draws indices long before it yields their batch, and a loop may read batches before it trains on them.
So indices are noted when they are drawn, come out in the same order when their batch is yielded, and belong to the
next backward. That is exact as long as one new batch lies between two backwards: the batch used by the n-th backward
is then the n-th that was yielded. Where more were yielded, the loop has read ahead or left one out, and only the
model's input shows which: it is compared with the last batches until that is settled. Until then the ids are unknown.

The hooks lie on torch's iterator, so that loaders, samplers and their random draws stay as they are.
"""

from __future__ import annotations

import functools
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import dataloader as torch_dataloader

from tbnum.observe.caller import warn
from tbnum.observe.patch_point import PatchPoint, Place

__all__ = ["BatchIds", "checked_ids", "checked_loader"]

COMPARED = 32
"""Batches that the model's input is compared with: as many as an accumulation has whose batches are read at once."""

SETTLED = 4
"""Backwards whose batch was known, after which the model's input is no longer looked at."""

NEVER_READ = 10
"""Steps without a batch from the loader, after which it is said to be another than the loop's."""


def checked_loader(data: Any) -> DataLoader[Any]:
    """The DataLoader behind `data`, whose indices can be followed.

    Raises:
        TypeError: `data` is no DataLoader, nor something around one.
        ValueError: it has no indices, or its batches come in another order than they are drawn.
    """
    loader = getattr(data, "base_dataloader", data)  # accelerate's, which stands for the DataLoader inside
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"data={_shortened(data)} is no torch DataLoader. For other loaders: monitor.log_batch(ids) in each step."
        )
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            f"data= has an IterableDataset ({type(loader.dataset).__name__}), whose samples have no index. Have it "
            "yield the ids with the samples, and give them to monitor.log_batch(ids) in each step."
        )
    if not getattr(loader, "in_order", True):
        raise ValueError(
            "data= was made with in_order=False: its batches come in another order than their indices are drawn in. "
            "Leave in_order out, or give the ids to monitor.log_batch(ids) in each step."
        )
    return loader


def checked_ids(ids: Any) -> np.ndarray:
    """(N,) int64: sample ids from a number, a sequence of numbers, an array or a CPU tensor.

    Raises:
        TypeError: they are no whole numbers of 64 bits.
    """
    if type(ids) is list and set(map(type, ids)) == {int}:  # as samplers draw them
        found = np.asarray(ids)
        if found.dtype == np.int64:
            return found
    if isinstance(ids, Tensor):
        if ids.device.type != "cpu":
            raise TypeError(
                f"log_batch() takes ids on the CPU, not on {ids.device}: keep them there, or pass ids.cpu()."
            )
        ids = ids.detach().numpy()
    if isinstance(ids, (str, bytes, Mapping)):
        raise TypeError(
            f"log_batch() takes whole numbers, not {_shortened(ids)}. Of names, take their place in the data set."
        )
    try:
        found = np.asarray(list(ids) if isinstance(ids, Iterable) and not isinstance(ids, np.ndarray) else ids)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"log_batch() takes a sequence of whole numbers, not {_shortened(ids)}.") from None
    if found.size == 0 and found.ndim <= 1:
        return np.empty(0, np.int64)
    if found.ndim > 1 or found.dtype.kind not in "iu" or int(found.max()) > np.iinfo(np.int64).max:
        raise TypeError(f"log_batch() takes whole numbers of 64 bits, one a sample, not {_shortened(ids)}.")
    return found.reshape(-1).astype(np.int64)


def _drawn(indices: Any) -> np.ndarray:
    """`checked_ids` of what a sampler drew; a list of 32 numbers takes 1 us."""
    if type(indices) is list and indices:
        try:
            return np.frombuffer(array("q", indices), np.int64)
        except (TypeError, OverflowError):
            pass  # whatever it is, it is refused there with its name
    return checked_ids(indices)


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class _Epoch:
    """One pass over a loader: what was drawn, yielded, and used by a backward."""

    def __init__(self, group: int) -> None:
        self.group = group  # passes that are read side by side, as `zip(loader, loader)` does
        self.drawn: deque[Any] = deque()
        self.yielded = 0
        self.unused: deque[tuple[int, Any]] = deque()  # number in the epoch, indices
        self.backwards = 0  # those that came after a new batch
        self.at_backward = 0  # `yielded`, at the last backward
        self.lag: int | None = None  # batches that the loop is ahead of its backward; None: not known
        self.matched: int | None = None  # number of the batch that the model got since the last backward
        self.repeats = False  # two backwards came with no new batch between
        self.exhausted = False
        self.ended = False  # `exhausted` since the last backward
        self.broken = False
        self.iterator: weakref.ref[Any] | None = None
        self.last: deque[tuple[int, list[weakref.ref[Tensor]]]] = deque(maxlen=COMPARED)

    @property
    def new(self) -> int:
        """Batches since the last backward."""
        return self.yielded - self.at_backward

    @property
    def holds_back(self) -> bool:
        """Whether the loop may have batches of it in hand that no backward has used."""
        return self.yielded > 0 and (self.lag is None or (self.lag > 0 and len(self.unused) > 0))

    @property
    def goes_on(self) -> bool:
        """Whether its iterator is still held by the loop, and has a batch left."""
        is_held = self.iterator is not None and self.iterator() is not None
        return is_held and not (self.exhausted and not self.unused)


class BatchIds:
    """The sample ids of the steps of one monitor, from a loader that is followed or as the loop logs them.

    `backward` when a backward of the optimizer's loss begins, `close` when a step has ended, `aside` when what came
    since was no step. A batch of 32 costs 4 us in all, hooks on the loader included.
    """

    def __init__(self, loader: DataLoader[Any] | None = None, models: Sequence[nn.Module] = ()) -> None:
        self.is_used = loader is not None  # else, until ids are logged, there is nothing to follow
        self._epochs: list[_Epoch] = []  # of those that are open, oldest first
        self._gathered: list[Any] = []  # indices of the batches that the attempt has used
        self._aside: list[Any] = []  # of the attempt before, where that was no step
        self._logged: list[np.ndarray] = []
        self._unknown = False
        self._steps = 0
        self._was_read = False
        self._warned = False
        self._lag = 0  # of the last pass in which it was known
        self._settled = 0  # backwards in a row whose batch was known
        self._reads_in_chunks = False  # several batches at once, which are then used one by one: counting is no proof
        self._hooks: list[Any] = []
        self._models = [weakref.ref(model) for model in models if not _is_compiled(model)]
        self._samplers = [] if loader is None else [_weak(sampler) for sampler in _samplers(loader)]
        self._loader = None if loader is None else weakref.ref(loader)
        self._release = None if loader is None else _patch_point.observe(self)
        if loader is not None:
            self._listen()

    def release(self) -> None:
        """Takes the hooks off."""
        self._stop_listening()
        if self._release is not None:
            self._release()
            self._release = None

    # -- from the loop

    def log(self, ids: Any) -> None:
        """Ids of the attempt that is open, or opens next, in place of the loader's."""
        self._logged.append(checked_ids(ids))
        self.is_used = True

    def backward(self) -> None:
        """A backward of the optimizer's loss begins."""
        if self._loader is None or self._next_as_before():
            return
        fresh = [epoch for epoch in self._epochs if epoch.new]
        for epoch in fresh:
            epoch.backwards += 1
            if epoch.backwards > 1:  # what an earlier pass held back has been used by now, or never will be
                self._epochs = [other for other in self._epochs if other.group >= epoch.group]
        if fresh and len({epoch.group for epoch in self._epochs if epoch.new or epoch.holds_back}) > 1:
            fresh = self._one_group(fresh)
        if fresh:
            self._aside = []
        else:
            self._use_again()
        for epoch in fresh:
            self._use(epoch)
        self._settled = 0 if self._unknown else self._settled + 1
        if self._hooks and self._settled >= SETTLED and not self._reads_in_chunks:
            self._stop_listening()

    def _next_as_before(self) -> bool:
        """One new batch since the last backward of the one pass, in a loop that never read ahead: most are so."""
        if len(self._epochs) != 1 or self._hooks or self._unknown or self._reads_in_chunks:
            return False
        (epoch,) = self._epochs
        before, is_sure = epoch.at_backward, epoch.lag == 0 and epoch.matched is None
        if not before or not is_sure or epoch.yielded != before + 1 or epoch.ended or epoch.broken:
            return False
        epoch.at_backward = epoch.yielded
        epoch.backwards += 1
        if self._aside:
            self._aside = []
        self._lag = 0
        self._settled += 1
        self._gathered.append(epoch.unused.popleft()[1])
        return True

    def close(self) -> np.ndarray | None:
        """The ids of the step that has ended, in the order of their batches; None where they are not known."""
        gathered, logged, unknown = self._gathered, self._logged, self._unknown
        self._gathered, self._logged, self._aside, self._unknown = [], [], [], False
        self._steps += 1
        if logged:
            return np.concatenate(logged)
        if self._steps == NEVER_READ and not self._was_read and self._loader is not None:
            self._warn_once(
                f"no batch came from the loader that was given as data= in {NEVER_READ} steps: the loop reads another. "
                "Give that one to wrap(), or the ids to monitor.log_batch(ids)."
            )
        if unknown or not gathered:
            return None
        return self._flat(gathered)

    def aside(self) -> None:
        """What was used since the last step belongs to none, unless the next backward comes without a new batch."""
        self._aside, self._gathered = self._gathered or self._aside, []

    # -- from the loader

    def follows(self, loader: DataLoader[Any]) -> bool:
        """Whether it is the loader that was given, or one made from it: it draws from the same sampler then."""
        own = self._loader() if self._loader is not None else None
        if loader is own:
            return True
        ours = [sampler for ref in self._samplers if (sampler := ref()) is not None]
        return any(theirs is sampler for theirs in _samplers(loader) for sampler in ours)

    def opens(self) -> _Epoch:
        """A pass over the loader begins."""
        self._epochs = [epoch for epoch in self._epochs if epoch.new or epoch.holds_back or epoch.goes_on]
        if self._lag:
            self._listen()  # the loop reads ahead, most likely as in the last pass
        last = self._epochs[-1] if self._epochs else None
        epoch = _Epoch(0 if last is None else last.group + (last.yielded > 0))
        self._epochs.append(epoch)
        return epoch

    def yields(self, epoch: _Epoch, batch: Any) -> None:
        self._was_read = True
        if epoch.drawn:
            epoch.unused.append((epoch.yielded, epoch.drawn.popleft()))
        else:  # drawn before somebody followed it
            epoch.broken = True
        if self._hooks:
            epoch.last.append((epoch.yielded, [weakref.ref(tensor) for tensor in _tensors(batch)]))
        epoch.yielded += 1

    # -- which of them was used

    def _one_group(self, fresh: list[_Epoch]) -> list[_Epoch]:
        """Of passes that have nothing to do with each other the one that the model's input is from.

        One was given up with its last batch unused, or read for something else. Which of them, only the input shows.
        """
        matched = [epoch for epoch in fresh if epoch.matched is not None]
        used = matched if len({epoch.group for epoch in matched}) == 1 else []
        for epoch in self._epochs:
            if epoch not in used:
                epoch.lag = 0 if epoch.lag == 0 or epoch.yielded == 1 else None
                epoch.at_backward, epoch.matched = epoch.yielded, None
                epoch.unused.clear()
        if not used:
            self._unknown = True
        return used

    def _use(self, epoch: _Epoch) -> None:
        asked, matched = epoch.new + epoch.ended, epoch.matched  # how often the loop asked for a batch
        first = epoch.at_backward == 0
        epoch.at_backward, epoch.matched, epoch.ended = epoch.yielded, None, False
        if epoch.broken:
            self._unknown = True
        elif matched is not None:
            self._use_matched(epoch, matched)
        elif self._reads_in_chunks:
            self._cannot_know(epoch)
        else:
            if first or asked > 1:
                epoch.lag = 0 if epoch.yielded == 1 else None
            if epoch.lag is None:
                self._cannot_know(epoch)
                return
            self._lag = epoch.lag
            while epoch.unused and epoch.unused[0][0] < epoch.yielded - epoch.lag:
                self._gathered.append(epoch.unused.popleft()[1])

    def _use_matched(self, epoch: _Epoch, matched: int) -> None:
        """The model got this batch; those before it that were not used have been left out by the loop."""
        while epoch.unused and epoch.unused[0][0] < matched:
            epoch.unused.popleft()
        if epoch.unused and epoch.unused[0][0] == matched:
            self._gathered.append(epoch.unused.popleft()[1])
        else:
            self._reads_in_chunks = True  # and uses them in an order of its own: nothing follows from theirs
        self._lag = epoch.lag = epoch.yielded - 1 - matched

    def _cannot_know(self, epoch: _Epoch) -> None:
        self._unknown = True
        epoch.lag = None
        self._listen()

    def _use_again(self) -> None:
        """A backward without a new batch: that of a batch read ahead, or the same once more."""
        for epoch in reversed(self._epochs):
            matched, epoch.matched = epoch.matched, None
            if epoch.unused and epoch.lag != 0:
                if matched is not None:
                    self._reads_in_chunks |= not epoch.exhausted and epoch.unused[0][0] <= matched
                    self._use_matched(epoch, matched)
                elif epoch.lag and epoch.exhausted and not epoch.repeats and not self._reads_in_chunks:
                    epoch.lag -= 1
                    self._gathered.append(epoch.unused.popleft()[1])
                else:
                    self._reads_in_chunks |= not epoch.exhausted
                    self._cannot_know(epoch)
                return
            epoch.repeats = epoch.repeats or (epoch.at_backward > 0 and not epoch.exhausted)
        if not self._gathered:
            self._gathered, self._aside = self._aside, []

    def _flat(self, gathered: list[Any]) -> np.ndarray | None:
        try:
            return _drawn(gathered[0]) if len(gathered) == 1 else np.concatenate([_drawn(each) for each in gathered])
        except TypeError:
            self._warn_once(
                f"the sampler of data= draws {_shortened(gathered[0])}, which is no whole number: the record will not "
                "have these ids. monitor.log_batch(ids) takes numbers of your own."
            )
            return None

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warn(text)

    # -- the model's input

    def _listen(self) -> None:
        if not self._hooks:
            own = weakref.ref(self)
            for ref in self._models:
                model = ref()
                if model is not None:
                    hook = functools.partial(_model_called, own)
                    self._hooks.append(model.register_forward_pre_hook(hook, with_kwargs=True))

    def _stop_listening(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for epoch in self._epochs:
            epoch.last.clear()

    def compare(self, inputs: Any) -> None:
        """Which of the last batches a model was called with, where it is one alone."""
        given = [tensor for tensor in _tensors(inputs) if _can_be_compared(tensor)]
        for epoch in self._epochs:
            if not epoch.new and not epoch.unused:
                continue
            for tensor in given:
                equal = [number for number, batch in epoch.last if any(_same(ref(), tensor) for ref in batch)]
                if len(equal) == 1:
                    epoch.matched = equal[0]
                    break


def _model_called(own: weakref.ref[BatchIds], module: nn.Module, inputs: Any, keywords: Any) -> None:
    ids = own()
    if ids is not None and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        ids.compare((inputs, keywords))


def _is_compiled(model: nn.Module) -> bool:
    return type(model).__module__.startswith("torch._dynamo") or model._compiled_call_impl is not None


def _tensors(value: Any) -> Iterator[Tensor]:
    """Those in a batch, however nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _can_be_compared(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu" and tensor.layout == torch.strided


def _same(known: Tensor | None, given: Tensor) -> bool:
    if known is None or not _can_be_compared(known) or known.dtype != given.dtype or known.shape != given.shape:
        return False
    return known is given or known.data_ptr() == given.data_ptr() or torch.equal(known, given)


def _samplers(loader: DataLoader[Any]) -> list[Any]:
    """What a loader draws from, and what that draws from in turn."""
    found: list[Any] = []
    sampler: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    while sampler is not None and len(found) < 8:
        found.append(sampler)
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return found


def _weak(sampler: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(sampler)
    except TypeError:  # a list, say: whether another loader has the same is unknown
        return lambda: None


# -- torch's iterator

_Following = list[tuple[BatchIds, _Epoch]]


class _Opening(threading.local):
    """Inside `iter(loader)`: who follows it. Its iterator may draw there already."""

    following: _Following | None = None


_opening = _Opening()
_FOLLOWED = "_tbnum_followed"  # attribute of torch's iterator, which belongs to the loop alone: who follows it


def _bind(iterator: Any, following: _Following) -> None:
    vars(iterator)[_FOLLOWED] = following
    for _, epoch in following:
        epoch.iterator = weakref.ref(iterator)


def _iter_stand_in(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __iter__(self: DataLoader[Any]) -> Any:
        following = [(ids, ids.opens()) for ids in _patch_point.observers() if ids.follows(self)]
        before, _opening.following = _opening.following, following
        try:
            iterator = original(self)
        finally:
            _opening.following = before
        if following and isinstance(iterator, torch_dataloader._BaseDataLoaderIter):
            _bind(iterator, following)
        return iterator

    return __iter__


def _next_index_stand_in(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _next_index(self: Any) -> Any:
        following = _opening.following
        if following:
            _bind(self, following)
        index = original(self)
        for _, epoch in self.__dict__.get(_FOLLOWED, ()):
            epoch.drawn.append(index)
        return index

    return _next_index


def _next_stand_in(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        following = self.__dict__.get(_FOLLOWED)
        if not following:
            return original(self)
        try:
            batch = original(self)
        except BaseException as error:
            for _, epoch in following:
                if isinstance(error, StopIteration):
                    epoch.exhausted = epoch.ended = True
                else:
                    epoch.broken = True
            raise
        for ids, epoch in following:
            ids.yields(epoch, batch)
        return batch

    return __next__


def _places() -> list[Place]:
    iterator = torch_dataloader._BaseDataLoaderIter
    return [
        Place(DataLoader, "__iter__", _iter_stand_in),
        Place(iterator, "_next_index", _next_index_stand_in),
        Place(iterator, "__next__", _next_stand_in),
    ]


_patch_point: PatchPoint[BatchIds] = PatchPoint(_places)
