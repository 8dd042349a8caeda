"""Combining members' predictions: any order of arrival gives the bits of a plain loop over the members."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from partita.core.errors import InferenceFailed
from partita.core.segments import segment_count, segment_rows
from partita.machines.accumulator import Accumulator, MemberOutput, class_order
from partita.machines.rules import rule_maker

Array = NDArray[Any]
RULES = ("mean", "weighted", "vote", "max", "median")
WEIGHTS = (1.0, 0.3, 2.5, 7.0, 1.0)
Message = tuple[int, int, Array]
"""(member, first item, predictions)."""


@dataclass(frozen=True)
class Case:
    rule: str
    n_items: int
    members: tuple[MemberOutput, ...]
    predictions: list[Array]  # of each member (n_items, classes), as it answers them
    messages: list[Message]

    @property
    def weights(self) -> dict[str, float]:
        return {member.name: weight for member, weight in zip(self.members, WEIGHTS, strict=False)}

    def accumulator(self) -> Accumulator:
        return Accumulator(rule_maker(self.rule, self.weights)(), self.members, self.n_items)

    def mapped(self, member: int) -> Array:
        order = self.members[member].order
        return self.predictions[member] if order is None else self.predictions[member][:, list(order)]

    def plain_loop(self, members: list[int]) -> Array:
        rule = rule_maker(self.rule, self.weights)()
        rule.start(self.n_items, [member.name for member in self.members])
        for member in members:
            rule.update(slice(0, self.n_items), self.members[member].name, self.mapped(member))
        return np.asarray(rule.finish())


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_items, classes = draw(st.integers(1, 40)), draw(st.integers(1, 5))
    dtype = draw(st.sampled_from(["f4", "f8", "f2"]))
    count = draw(st.integers(1, 5))
    members, predictions, messages = [], [], []
    for index in range(count):
        order = tuple(int(k) for k in rng.permutation(classes)) if draw(st.booleans()) else None
        members.append(MemberOutput(name=f"m{index}", order=order))
        made = (
            rng.standard_normal((n_items, classes))
            if draw(st.booleans())
            else rng.integers(0, 3, (n_items, classes))
        )
        predictions.append(made.astype(dtype))
        cuts = sorted(draw(st.sets(st.integers(1, n_items - 1), max_size=4))) if n_items > 1 else []
        for first, end in zip([0, *cuts], [*cuts, n_items], strict=True):
            messages.append((index, first, predictions[-1][first:end]))
    return Case(
        rule=draw(st.sampled_from(RULES)),
        n_items=n_items,
        members=tuple(members),
        predictions=predictions,
        messages=draw(st.permutations(messages)),
    )


def assert_same_bits(ours: Array, theirs: Array) -> None:
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert ours.tobytes() == theirs.tobytes()


@given(cases())
@settings(max_examples=200, deadline=None)
def test_any_order_of_arrival_gives_the_bits_of_a_plain_loop(case: Case) -> None:
    accumulator = case.accumulator()
    for count, (member, first, predictions) in enumerate(case.messages):
        assert not accumulator.is_complete, count
        buffer = predictions.copy()
        accumulator.add(member, first, buffer)
        buffer[:] = 99  # what was given is ours again
    assert accumulator.is_complete
    result = accumulator.finish()
    assert_same_bits(result, case.plain_loop(list(range(len(case.members)))))
    assert result.dtype == case.predictions[0].dtype


@given(cases(), st.data())
@settings(max_examples=200, deadline=None)
def test_without_the_dropped_members_it_is_as_if_they_had_never_been(case: Case, data: st.DataObject) -> None:
    accumulator = case.accumulator()
    everybody = range(len(case.members))
    victims = data.draw(st.sets(st.sampled_from(everybody), max_size=len(case.members) - 1))
    when = {victim: data.draw(st.integers(0, len(case.messages))) for victim in victims}
    for count, (member, first, predictions) in enumerate(case.messages):
        for victim, at in when.items():
            if at == count:
                accumulator.drop(victim)
        if member not in accumulator.dropped:
            accumulator.add(member, first, predictions)
    for victim in victims:
        accumulator.drop(victim)
    assert accumulator.is_complete
    assert accumulator.dropped <= victims
    rest = [member for member in everybody if member not in accumulator.dropped]
    assert_same_bits(accumulator.finish(), case.plain_loop(rest))


@given(cases())
@settings(max_examples=100, deadline=None)
def test_rules_mean_what_they_say(case: Case) -> None:
    everyone = np.stack([case.mapped(member) for member in range(len(case.members))]).astype(np.float64)
    weights = np.array([case.weights[member.name] for member in case.members])
    votes = np.zeros(everyone.shape[1:])
    for predicted, weight in zip(everyone, weights, strict=True):
        for item, row in enumerate(predicted):
            votes[item, list(row).index(row.max())] += weight
    wanted = {
        "mean": everyone.mean(axis=0),
        "weighted": np.average(everyone, axis=0, weights=weights),
        "vote": votes / weights.sum(),
        "max": everyone.max(axis=0),
        "median": np.median(everyone, axis=0),
    }
    loose = 5e-3 if case.predictions[0].dtype == np.float16 else 1e-5
    got = case.plain_loop(list(range(len(case.members))))
    np.testing.assert_allclose(got, wanted[case.rule], rtol=loose, atol=loose)


def test_300_items_in_segments_of_128() -> None:
    rows = [segment_rows(s, 128, 300) for s in range(segment_count(300, 128))]
    assert [(r.start, r.stop) for r in rows] == [(0, 128), (128, 256), (256, 300)]
    rng = np.random.default_rng(5)
    predictions = [rng.standard_normal((300, 10)).astype(np.float32) for _ in range(4)]
    members = [MemberOutput(name=f"m{m}") for m in range(4)]
    for rule in RULES:
        weights = {f"m{m}": m + 0.1 for m in range(4)}
        accumulator = Accumulator(rule_maker(rule, weights)(), members, 300)
        messages = [(s, m) for s in range(3) for m in range(4)]
        for index in rng.permutation(len(messages)):  # triplets {s, m, P}
            s, m = messages[index]
            accumulator.add(m, rows[s].start, predictions[m][rows[s]])
        loop = rule_maker(rule, weights)()
        loop.start(300, [member.name for member in members])
        for m in range(4):
            for r in rows:
                loop.update(r, f"m{m}", predictions[m][r])
        assert_same_bits(accumulator.finish(), np.asarray(loop.finish()))


@given(st.integers(1, 2000), st.integers(1, 300))
def test_segments_cover_every_item_once(n_items: int, size: int) -> None:
    rows = [segment_rows(s, size, n_items) for s in range(segment_count(n_items, size))]
    assert [i for r in rows for i in range(r.start, r.stop)] == list(range(n_items))
    assert all(r.stop - r.start == size for r in rows[:-1])


def test_ties_of_votes_go_to_the_lowest_class() -> None:
    rule = rule_maker("vote", {"a": 1.0, "b": 1.0})()
    rule.start(2, ["a", "b"])
    rule.update(slice(0, 2), "a", np.array([[0.0, 5.0, 5.0], [0.0, 0.0, 1.0]], np.float32))
    rule.update(slice(0, 2), "b", np.array([[0.0, 0.0, 9.0], [1.0, 0.0, 0.0]], np.float32))
    shares = rule.finish()
    assert shares.tolist() == [[0.0, 0.5, 0.5], [0.5, 0.0, 0.5]]
    assert shares.argmax(axis=1).tolist() == [1, 0]


def test_shapes_that_differ_name_both_members() -> None:
    members = [MemberOutput(name="a"), MemberOutput(name="b")]
    accumulator = Accumulator(rule_maker("mean", {"a": 1.0, "b": 1.0})(), members, 2)
    accumulator.add(1, 0, np.zeros((2, 10), np.float32))
    with pytest.raises(
        InferenceFailed, match=r"member a answered items of shape \[11\] and member b of shape \[10\]"
    ):
        accumulator.add(0, 0, np.zeros((2, 11), np.float32))


def test_classes_are_put_in_the_ensembles_order() -> None:
    assert class_order(("cat", "dog", "owl"), ("owl", "cat", "dog")) == (1, 2, 0)
    assert class_order(("cat", "dog"), ("cat", "dog")) is None
    member = MemberOutput(name="b", order=class_order(("cat", "dog", "owl"), ("owl", "cat", "dog")))
    accumulator = Accumulator(rule_maker("max", {"b": 1.0})(), [member], 1)
    accumulator.add(0, 0, np.array([[0.1, 0.2, 0.7]], np.float32))  # owl, cat, dog
    np.testing.assert_array_equal(accumulator.finish(), np.array([[0.2, 0.7, 0.1]], np.float32))


def test_a_member_with_more_or_fewer_values_than_classes_is_named() -> None:
    members = [MemberOutput(name="a"), MemberOutput(name="b", order=(1, 0))]
    for classes in (1, 3):
        made = Accumulator(rule_maker("mean", {"a": 1.0, "b": 1.0})(), members, 2)
        with pytest.raises(InferenceFailed, match=r"member b answered items of shape .*, and has 2 classes"):
            made.add(1, 0, np.zeros((2, classes), np.float32))
