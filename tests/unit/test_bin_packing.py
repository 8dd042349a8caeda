"""Worst-fit decreasing against a table written by hand (sizes in MiB, worked out on paper)."""

import re

import pytest

from partita.core.allocation import AllocationMatrix
from partita.core.devices import MIB, Device
from partita.core.errors import NoFeasiblePlan
from partita.planning.bin_packing import worst_fit_decreasing
from partita.system.devices import cpu_device, cuda_device

GPUS4 = [("cuda", 16_000)] * 4
CASES: dict[str, tuple[list[tuple[str, int | None]], list[int], list[int]]] = {
    # devices (kind, MiB) · models (MiB) · device of each model
    "one model, one device": ([("cpu", 100)], [40], [0]),
    "exactly full": ([("cuda", 100)], [60, 40], [0, 0]),
    "spread over equal devices": ([("cuda", 100), ("cuda", 100)], [30, 20], [0, 1]),
    "the emptiest first": ([("cuda", 100), ("cuda", 200)], [50], [1]),
    # 70 → 0 (30 left), 60 → 1 (40 left), 40 → 1 (0 left), 30 → 0; given in another order
    "largest first": ([("cuda", 100), ("cuda", 100)], [30, 60, 40, 70], [0, 1, 1, 0]),
    "equal models in order": ([("cuda", 100), ("cuda", 100)], [50, 50, 50], [0, 1, 0]),
    "GPU before a larger CPU": ([("cpu", 1000), ("cuda", 100)], [80], [1]),
    "CPU only when the GPU is full": ([("cuda", 100), ("cpu", 1000)], [80, 60, 20], [0, 1, 0]),
    "one network on 16 GPUs": ([("cuda", 16_000)] * 16, [3_000], [0]),
    # 12 networks, 48 500 in all: GPUs 0–3 take 6000 6000 5500 5500, then the emptiest in turn
    "12 networks on 4 GPUs and a CPU": (
        [*GPUS4, ("cpu", 64_000)],
        [6_000, 6_000, 5_500, 5_500, 5_000, 4_500, 4_000, 3_500, 3_000, 2_500, 2_000, 1_000],
        [0, 1, 2, 3, 2, 3, 0, 1, 1, 0, 3, 2],
    ),
    # the 5th large one finds 4 × 6 000 left: the CPU takes it, and the small one still goes to a GPU
    "5 large networks on 4 GPUs and a CPU": (
        [*GPUS4, ("cpu", 64_000)],
        [10_000, 10_000, 10_000, 10_000, 10_000, 6_000],
        [0, 1, 2, 3, 4, 0],
    ),
    "memory unknown: by what is held": ([("cpu", None), ("cpu", None)], [50, 40, 30], [0, 1, 1]),
}


def devices(kinds: list[tuple[str, int | None]]) -> list[Device]:
    made = []
    for index, (kind, size) in enumerate(kinds):
        memory_bytes = None if size is None else size * MIB
        made.append(
            cuda_device(index, memory_bytes) if kind == "cuda" else cpu_device((index,), memory_bytes)
        )
    return made


def pack(kinds: list[tuple[str, int | None]], sizes: list[int], batch: int = 8) -> AllocationMatrix:
    names = [f"model{index}" for index in range(len(sizes))]
    return worst_fit_decreasing(devices(kinds), names, [[size * MIB for size in sizes]] * len(kinds), batch)


@pytest.mark.parametrize("case", CASES)
def test_as_worked_out_by_hand(case: str) -> None:
    kinds, sizes, wanted = CASES[case]
    matrix = pack(kinds, sizes)
    assert [[d for d, b in enumerate(matrix.column(m)) if b] for m in range(matrix.models)] == [
        [device] for device in wanted
    ]
    assert {worker.batch for worker in matrix.workers()} == {8}


def test_too_large_for_everything_names_model_amount_and_devices() -> None:
    with pytest.raises(NoFeasiblePlan) as caught:
        pack([("cuda", 100), ("cuda", 90), ("cpu", 50)], [80, 70, 60])
    text = str(caught.value)
    assert text.startswith(
        "model2 does not fit: with batches of 8 it needs 60 MiB, 10 MiB more than cpu:2 has left"
    )
    assert re.findall(r"(\S+) has (\d+) MiB left of (\d+) MiB \((\w+)\)", text) == [
        ("cuda:0", "20", "100", "model0"),
        ("cuda:1", "20", "90", "model1"),
        ("cpu:2", "50", "50", "nothing"),
    ]


def test_a_model_may_hold_more_on_one_device_than_on_another() -> None:
    # model1 is the larger one (90) and goes first: device 0, where it needs 10; then model0 to device 1.
    needs = [[60 * MIB, 10 * MIB], [30 * MIB, 90 * MIB]]
    matrix = worst_fit_decreasing(devices([("cuda", 100), ("cuda", 100)]), ["a", "b"], needs, 16)
    assert matrix.as_lists() == [[0, 16], [16, 0]]
