"""Calls that are kept of an archive: few, within a limit of memory, and only those that went well."""

import struct
from typing import Any

import pytest

from partita.engine.call_sample import RIPE_S, CallSample
from partita.engine.request import Layout, Request
from partita.wire.archive_call import PROBE, Answer, Call, Field, pack_answer, pack_call


class Clock:
    time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def wall_s(self) -> float:
        return self.time_s


class Sink:
    def answered(self, *_: Any) -> None: ...

    def failed(self, *_: Any) -> None: ...


def element(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def look(sample: CallSample, call: bytes, answer: Answer | None = None) -> None:
    """Let a call be answered that lies somewhere in X."""
    data = element(call)
    request = Request(1, Layout("ragged", (1,), is_ragged=True), Sink(), None, 0.0)
    request.item_spans = [((64,), (len(data),))]
    sample.look(
        request, memoryview(b"\0" * 64 + data + b"more"), [element(pack_answer(answer or Answer(b"")))]
    )


def call(number: int, size: int = 100, *headers: tuple[str, str]) -> bytes:
    return pack_call(Call(str(number), (Field("body", "", b"x" * size),), headers))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_calls_are_drawn_evenly_from_all_that_came(clock: Clock) -> None:
    seen = [0] * 4
    for seed in range(200):
        sample = CallSample(1 << 20, clock, most_calls=8, seed=seed)
        numbers = {call(number): number for number in range(64)}
        for one in numbers:
            look(sample, one)
        kept = sample.take()
        assert len(kept) == 8
        for one in kept:
            seen[numbers[one] // 16] += 1
    assert all(300 < count < 500 for count in seen), f"400 each are to be expected: {seen}"


def test_memory_has_a_limit_whatever_comes(clock: Clock) -> None:
    sample = CallSample(2000, clock, most_calls=8)
    for number in range(500):
        look(sample, call(number, size=(number * 37) % 900))
        assert sum(map(len, sample._calls)) == 2000 - sample._room <= 2000
    assert 1 <= sample.count <= 8
    assert sample.take()
    assert sample.count == 0


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (call(1), Answer(b"", 422, error="refused")),
        (call(1), Answer(b"", 418)),
        (call(1, 100, ("explain", "True")), None),
        (call(1, 100, ("Describe", "True")), None),
        (PROBE, None),
    ],
    ids=["refused", "failed", "explanation", "description", "probe"],
)
def test_what_is_no_prediction_or_went_wrong_is_not_kept(
    asked: bytes, answer: Answer | None, clock: Clock
) -> None:
    sample = CallSample(1 << 20, clock)
    look(sample, asked, answer)
    assert sample.count == 0
    assert not sample.is_ripe


def test_a_body_alone_is_a_call(clock: Clock) -> None:
    sample = CallSample(1 << 20, clock)
    look(sample, b"a body")
    assert sample.take() == (b"a body",)


def test_it_is_ripe_with_enough_calls_or_some_time_after_the_first(clock: Clock) -> None:
    few, many = CallSample(1 << 20, clock), CallSample(1 << 20, clock)
    clock.time_s = 100.0
    look(few, call(0))
    ripe = []
    for number in range(32):
        look(many, call(number))
        ripe.append(many.is_ripe)
    assert ripe == [False] * 31 + [True]
    assert [few.is_ripe] == [False]
    clock.time_s = 100.0 + RIPE_S
    assert [few.is_ripe] == [True]
