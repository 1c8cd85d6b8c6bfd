"""The ids of a step are those of the samples that its backward used, or they are not known."""

from __future__ import annotations

import gc
import pickle
import random
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tbnum.observe.loader import BatchIds, checked_ids, checked_loader

SAMPLES = 30


class Numbers(Dataset[Tensor]):
    """Sample `i` is `[i, i]`, so that a batch shows its ids."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((2,), float(index))


class Eager(Sampler[int]):
    """Draws all its numbers when it is asked for an iterator."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SAMPLES).tolist())

    def __len__(self) -> int:
        return SAMPLES


class Buckets(Sampler[list[int]]):
    """A batch sampler whose batches differ in length."""

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(SAMPLES).tolist()
        yield from (order[:3], order[3:10], order[10:11], order[11:])


class OfTensors(Sampler[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.randperm(SAMPLES).split(4)


data = Numbers()
LOADERS: dict[str, dict[str, Any]] = {
    "in order": {"batch_size": 4},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "drops the last": {"batch_size": 4, "shuffle": True, "drop_last": True},
    "with replacement": {"batch_size": 4, "sampler": RandomSampler(data, replacement=True, num_samples=20)},
    "weighted": {"batch_size": 4, "sampler": WeightedRandomSampler(torch.ones(SAMPLES), 20)},
    "a subset": {"batch_size": 4, "sampler": SubsetRandomSampler(range(5, 25))},
    "distributed": {"batch_size": 4, "sampler": DistributedSampler(data, 2, 1)},
    "eager": {"batch_size": 4, "sampler": Eager()},
    "buckets": {"batch_sampler": Buckets()},
    "batches as tensors": {"batch_sampler": OfTensors()},
    "a list": {"batch_size": 4, "sampler": list(range(20, 0, -1))},
    "one sample at a time": {"batch_size": None, "sampler": RandomSampler(data)},
}


def of(batch: Any) -> list[int]:
    return batch.reshape(-1, 2)[:, 0].int().tolist()


def listed(ids: np.ndarray | None) -> list[int] | None:
    return None if ids is None else ids.tolist()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum()


class Loop:
    """A training loop that keeps its own account of what it trained on."""

    def __init__(self, loader: DataLoader[Any] | None, *, with_model: bool = False) -> None:
        self.model = Net()
        self.ids = BatchIds(loader, [self.model] if with_model else [])
        self.truth: list[list[int]] = []
        self.reported: list[list[int] | None] = []

    def step(self, *batches: Any) -> None:
        for batch in batches:
            loss = self.model(batch)
            self.ids.backward()
            loss.backward()
        self.truth.append([number for batch in batches for number in of(batch)])
        self.reported.append(listed(self.ids.close()))

    def is_exact(self) -> bool:
        assert self.truth
        return self.reported == self.truth

    def is_never_wrong(self) -> bool:
        assert self.truth
        return all(
            reported is None or reported == truth for reported, truth in zip(self.reported, self.truth, strict=True)
        )


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# -- what is exact -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOADERS)
def test_the_ids_are_exact_and_the_batches_those_without_it(name: str) -> None:
    torch.manual_seed(3)
    plain = [of(batch) for _ in range(2) for batch in DataLoader(data, **LOADERS[name])]
    torch.manual_seed(3)
    loader = DataLoader(data, **LOADERS[name])
    loop = Loop(loader)
    for _ in range(2):
        for batch in loader:
            loop.step(batch)
    assert loop.is_exact() and loop.truth == plain
    loop.ids.release()


@pytest.mark.parametrize("persistent", [False, True])
def test_they_are_exact_with_workers_that_draw_ahead(persistent: bool) -> None:
    loader = DataLoader(
        data, batch_size=4, shuffle=True, num_workers=2, prefetch_factor=3, persistent_workers=persistent
    )
    loop = Loop(loader)
    for epoch in range(3):
        for at, batch in enumerate(loader):
            loop.step(batch)
            if epoch == 1 and at == 2:
                break
    assert loop.is_exact()


def test_they_are_exact_with_accumulation_and_a_break() -> None:
    loader = DataLoader(data, batch_size=2, shuffle=True)
    loop = Loop(loader)
    for _ in range(3):
        held: list[Any] = []
        for at, batch in enumerate(loader):
            held.append(batch)
            loss = loop.model(batch)
            loop.ids.backward()
            loss.backward()
            if len(held) == 3:
                loop.truth.append([number for each in held for number in of(each)])
                loop.reported.append(listed(loop.ids.close()))
                held = []
                if at > 7:
                    break
    assert loop.is_exact()


def test_validation_in_between_and_other_loaders_count_for_nothing() -> None:
    loader = DataLoader(data, batch_size=4, shuffle=True)
    other = DataLoader(Numbers(), batch_size=4, shuffle=True)
    loop = Loop(loader)
    for batch in loader:
        for unseen in other:
            loop.model(unseen)
        loop.step(batch)
        next(iter(other))
    assert loop.is_exact()


def test_the_first_batch_of_each_new_iterator() -> None:
    loader = DataLoader(data, batch_size=4, shuffle=True)
    loop = Loop(loader)
    for _ in range(10):
        loop.step(next(iter(loader)))
    assert loop.is_exact()


def test_two_passes_side_by_side() -> None:
    loader = DataLoader(data, batch_size=4, shuffle=True)
    loop = Loop(loader)
    for first, second in zip(loader, loader, strict=True):
        loop.step(torch.cat([first, second]))
    assert loop.is_exact()


def test_the_same_batch_again_after_a_backward_on_the_side() -> None:
    """SAM: the first backward finds the point, the second is the step."""
    loader = DataLoader(data, batch_size=4, shuffle=True)
    loop = Loop(loader)
    for batch in loader:
        loop.ids.backward()
        loop.ids.aside()
        loop.step(batch)
    assert loop.is_exact()


def test_a_backward_on_the_side_of_another_batch_belongs_to_no_step() -> None:
    loader = DataLoader(data, batch_size=3, shuffle=True)
    loop = Loop(loader)
    for at, batch in enumerate(loader):
        if at % 2:
            loop.ids.backward()
            loop.ids.aside()
        else:
            loop.step(batch)
    assert loop.is_exact()


def test_a_loader_made_from_it_is_followed_in_its_place() -> None:
    loader = DataLoader(data, batch_size=4, shuffle=True)
    loop = Loop(loader)
    again = DataLoader(data, batch_sampler=loader.batch_sampler)
    for batch in again:
        loop.step(batch)
    assert loop.is_exact()


# -- loops that read ahead ---------------------------------------------------------------------------------------------


def ahead(loader: Iterable[Any], by: int = 1) -> Iterator[Any]:
    """The batches of `loader`, each when the one that is `by` behind it was read."""
    held: list[Any] = []
    for batch in loader:
        held.append(batch)
        if len(held) > by:
            yield held.pop(0)
    yield from held


def in_chunks(loader: Iterable[Any], of: int = 3) -> Iterator[Any]:
    """So many batches are read at once, and then given one by one."""
    held: list[Any] = []
    for batch in loader:
        held.append(batch)
        if len(held) == of:
            yield from held
            held = []
    yield from held


@pytest.mark.parametrize("by", [1, 2])
def test_a_loop_that_reads_ahead_has_exact_ids_where_the_models_input_shows_which(by: int) -> None:
    loader = DataLoader(data, batch_size=4, shuffle=True)
    loop = Loop(loader, with_model=True)
    for _ in range(3):
        for batch in ahead(loader, by):
            loop.step(batch)
    assert loop.is_exact()
    assert not loop.model._forward_pre_hooks


def test_a_loop_that_reads_the_batches_of_an_accumulation_at_once() -> None:
    loader = DataLoader(data, batch_size=2, shuffle=True)
    known, unknown = Loop(loader, with_model=True), Loop(loader)
    for _ in range(3):
        for batch in in_chunks(loader):
            known.step(batch)
            unknown.step(batch)
    assert known.is_exact()
    assert unknown.reported == [None] * len(unknown.truth)


def test_and_unknown_ones_where_it_does_not() -> None:
    loader = DataLoader(data, batch_size=4, shuffle=True)
    loop = Loop(loader)
    for _ in range(2):
        for batch in ahead(loader):
            loop.step(batch)
    assert loop.reported == [None] * len(loop.truth)


def test_inputs_made_from_the_batch_show_nothing() -> None:
    loader = DataLoader(data, batch_size=4, shuffle=True)
    loop = Loop(loader, with_model=True)
    model = loop.model
    for batch in ahead(loader):
        loss = model(batch / 255)
        loop.ids.backward()
        loss.backward()
        loop.truth.append(of(batch))
        loop.reported.append(listed(loop.ids.close()))
    assert loop.reported == [None] * len(loop.truth)


def test_the_next_batch_read_between_forward_and_backward() -> None:
    loader = DataLoader(data, batch_size=4, shuffle=True)
    loop = Loop(loader, with_model=True)
    batches = iter(loader)
    batch = next(batches)
    for upcoming in batches:
        loss = loop.model(batch)
        loop.ids.backward()
        loss.backward()
        loop.truth.append(of(batch))
        loop.reported.append(listed(loop.ids.close()))
        batch = upcoming
    assert loop.is_never_wrong()


@pytest.mark.parametrize("with_model", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_loop_does_with_its_batches_no_id_is_wrong(seed: int, with_model: bool) -> None:
    """Reads ahead, leaves batches out, looks at one on the side, breaks off, trains on one twice: at random."""
    chance = np.random.default_rng(seed)
    loader = DataLoader(data, batch_size=3, shuffle=True)
    loop = Loop(loader, with_model=with_model)
    for _ in range(6):
        how = chance.random()
        source: Iterable[Any] = ahead(loader, 1) if how < 0.25 else in_chunks(loader) if how < 0.45 else loader
        for batch in source:
            what = chance.random()
            if what < 0.1:
                continue
            if what < 0.15:
                break
            if what < 0.25:
                next(iter(loader))
            loop.step(batch)
            if what > 0.9:
                loop.step(batch)
    assert loop.is_never_wrong()
    assert not with_model or any(reported is not None for reported in loop.reported)


# -- what stays as it was ----------------------------------------------------------------------------------------------


def in_random_order(loader: Iterable[Any], order: random.Random) -> Iterator[Any]:
    batches = list(loader)
    yield from order.sample(batches, len(batches))


def replayed(loader: Iterable[Any], order: random.Random) -> Iterator[Any]:
    """Of each batch that is read, one of all that were."""
    kept: list[Any] = []
    for batch in loader:
        kept.append(batch)
        yield order.choice(kept)


@pytest.mark.parametrize("used", [in_random_order, replayed])
@pytest.mark.parametrize("seed", range(4))
def test_batches_that_are_used_in_an_order_of_their_own_have_no_wrong_ids(used: Any, seed: int) -> None:
    loader = DataLoader(data, batch_size=2, shuffle=True)
    loop = Loop(loader, with_model=True)
    for epoch in range(2):
        for batch in used(loader, random.Random(seed + 10 * epoch)):
            loop.step(batch)
    assert loop.is_never_wrong()


def test_nothing_is_left_in_torch_after_the_last_release() -> None:
    gc.collect()
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    before = DataLoader.__iter__, iterator.__next__, iterator._next_index
    loader = DataLoader(data, batch_size=4)
    first, second = BatchIds(loader), BatchIds(loader)
    first.release()
    assert DataLoader.__iter__ is not before[0]
    second.release()
    assert (DataLoader.__iter__, iterator.__next__, iterator._next_index) == before


def test_loaders_and_their_pickles_are_as_before() -> None:
    loader = DataLoader(data, batch_size=4)
    before = pickle.dumps(loader), type(loader), type(iter(loader)), dict(vars(loader))
    ids = BatchIds(loader)
    list(loader)
    assert (pickle.dumps(loader), type(loader), type(iter(loader)), dict(vars(loader))) == before
    ids.release()


def test_neither_loader_nor_batches_are_kept_alive() -> None:
    loader = DataLoader(data, batch_size=4)
    loop = Loop(loader, with_model=True)
    kept = [weakref.ref(loader)]
    for batch in loader:
        kept.append(weakref.ref(batch))
        loop.step(batch)
    del loader, batch
    gc.collect()
    assert all(ref() is None for ref in kept)


def test_two_monitors_follow_one_loader() -> None:
    loader = DataLoader(data, batch_size=4, shuffle=True)
    first, second = Loop(loader), Loop(loader)
    for batch in loader:
        first.step(batch)
        second.step(batch)
    assert first.is_exact() and second.is_exact()


def test_an_error_of_the_data_set_reaches_the_loop_as_it_is() -> None:
    class Broken(Numbers):
        def __getitem__(self, index: int) -> Tensor:
            if index == 6:
                raise LookupError("sample 6")
            return super().__getitem__(index)

    loader = DataLoader(Broken(), batch_size=2)
    loop = Loop(loader)
    batches = iter(loader)
    for _ in range(3):
        loop.step(next(batches))
    with pytest.raises(LookupError, match="sample 6"):
        next(batches)
    for batch in batches:
        loop.step(batch)
    assert loop.reported[:3] == loop.truth[:3] and loop.is_never_wrong()


def test_a_loader_that_the_loop_does_not_read_is_a_warning_once() -> None:
    loop = Loop(DataLoader(data, batch_size=4))
    with pytest.warns(RuntimeWarning, match="the loop reads another") as warned:
        for batch in list(DataLoader(Numbers(), batch_size=1)):
            loop.step(batch)
    assert len(warned) == 1 and set(map(str, loop.reported)) == {"None"}


# -- bad input, and ids of one's own -----------------------------------------------------------------------------------


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_what_has_no_indices_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"IterableDataset \(Stream\).*monitor\.log_batch\(ids\)"):
        checked_loader(DataLoader(Stream()))
    with pytest.raises(ValueError, match=r"in_order=False.*monitor\.log_batch\(ids\)"):
        checked_loader(DataLoader(data, num_workers=1, in_order=False))
    with pytest.raises(TypeError, match=r"data=\[1, 2\] is no torch DataLoader.*monitor\.log_batch\(ids\)"):
        checked_loader([1, 2])


def test_indices_that_are_no_numbers_are_unknown_and_said_once() -> None:
    class Named(Dataset[Tensor]):
        def __getitem__(self, name: str) -> Tensor:
            return torch.zeros(2)

    loader = DataLoader(Named(), batch_size=2, sampler=["a", "b", "c", "d"])
    loop = Loop(loader)
    with pytest.warns(RuntimeWarning, match=r"draws \['a', 'b'\], which is no whole number") as warned:
        for batch in loader:
            loop.step(batch)
    assert loop.reported == [None, None] and len(warned) == 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (7, [7]),
        ([3, 1], [3, 1]),
        ((), []),
        (range(3), [0, 1, 2]),
        (iter([5, 6]), [5, 6]),
        (np.array([1, 2], np.uint8), [1, 2]),
        (torch.tensor([4, 5]), [4, 5]),
        (torch.tensor(9), [9]),
        ([torch.tensor(4), torch.tensor(5)], [4, 5]),
        ([2**62, -1], [2**62, -1]),
    ],
)
def test_whole_numbers_are_kept_as_they_are(given: Any, kept: list[int]) -> None:
    assert checked_ids(given).tolist() == kept


@pytest.mark.parametrize(
    "given",
    [
        "abc",
        ["a"],
        [1.5],
        1.5,
        None,
        [None],
        {"a": 1},
        [[1, 2], [3, 4]],
        [2**64],
        True,
        [1, "a"],
        [1, [2]],
        [1, True, 0.5],
        object(),
    ],
)
def test_what_cannot_be_kept_is_a_type_error_that_names_it(given: Any) -> None:
    with pytest.raises(TypeError, match=r"log_batch\(\) takes") as error:
        checked_ids(given)
    assert repr(given)[:40] in str(error.value)


def test_ids_of_the_loops_own_add_up_over_a_step_and_go_before_the_loaders() -> None:
    loader = DataLoader(data, batch_size=4)
    loop = Loop(loader)
    batches = iter(loader)
    loop.ids.log([100, 101])
    loop.ids.log(102)
    loop.step(next(batches))
    loop.step(next(batches))
    assert loop.reported == [[100, 101, 102], loop.truth[1]]
    without = BatchIds()
    without.backward()
    assert without.close() is None
    without.log([1])
    without.backward()
    assert listed(without.close()) == [1]
