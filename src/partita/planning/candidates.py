"""The candidates of a model: which runtimes, with which options, are worth trying on this machine."""

from collections.abc import Collection, Iterable, Sequence

from partita.core.choice import Candidate, Option
from partita.core.formats import CALIBRATION

_BF16 = {"avx512_bf16", "amx_bf16"}
_INT8 = {"avx512_vnni", "avx_vnni", "amx_int8"}

_LOWER: dict[str, tuple[tuple[str, set[str]], ...]] = {
    "openvino": (("bf16", _BF16),),
    "onnxruntime": (("int8", _INT8),),
    "torch-script": (("bf16", _BF16),),
    "torch-eager": (("bf16", _BF16),),
}
"""Lower precisions of each runtime, with the instructions of which the CPU must have one."""

_STATIC = {"onnxruntime": _INT8, "openvino": _INT8}
"""Runtimes of models that were quantised with calibration items, with the instructions likewise."""

_VARIANTS: dict[str, tuple[dict[str, Option], ...]] = {
    "torch-script": ({"channels_last": True}, {"optimize_for_inference": True}),
    "torch-eager": ({"channels_last": True},),
}
"""Options of each runtime that pay for some models, in the order in which to try them."""


def candidates(
    runtimes: Sequence[str],
    *,
    instructions: Collection[str] = (),
    lower: bool = False,
    calibration: str = "",
) -> tuple[Candidate, ...]:
    """Return what to try, the most promising first; the reference, the first of `runtimes`, leads.

    `instructions` are the CPU's, by the kernel's names (``avx512_vnni``). Lower precisions are among them
    only if `lower` allows it and the CPU has instructions for them; those that need `calibration` items, only
    if there are such.
    """
    plain = [Candidate(runtime=runtime) for runtime in runtimes]
    low = list(_lower(runtimes, set(instructions), calibration)) if lower else []
    variants = [
        Candidate(runtime=runtime, options=options)
        for runtime in runtimes
        for options in _VARIANTS.get(runtime, ())
    ]
    return (*plain, *low, *variants)


def _lower(runtimes: Sequence[str], instructions: set[str], calibration: str) -> Iterable[Candidate]:
    for runtime in runtimes:
        for precision, needed in _LOWER.get(runtime, ()):
            if needed & instructions:
                yield Candidate(runtime=runtime, options={"precision": precision})
        if calibration and _STATIC.get(runtime, set()) & instructions:
            yield Candidate(runtime=runtime, options={"precision": "int8", CALIBRATION: calibration})


def trial_points(cores: int, batches: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the points ⟨t, b⟩ that candidates are compared at, in order; `batches` ascending.

    All cores and one core, a single item, a middle batch and the largest: the corners of the profile that
    plans are made of, those that tell most for their time first.
    """
    few, most = batches[0], batches[-1]
    middle = batches[len(batches) // 2]
    wanted = [(cores, few), (cores, middle), (1, few), (1, middle), (cores, most), (1, most)]
    half = 1 << (cores.bit_length() // 2)
    if 1 < half < cores:
        wanted += [(half, middle), (half, few)]
    return tuple(dict.fromkeys(wanted))
