"""Which candidates there are, and which one wins."""

from dataclasses import replace
from math import inf, isinf
from pathlib import Path

import pytest

from partita.core.choice import Allowance, Assessment, Candidate, Choice, Deviation, Speed, Verdict
from partita.core.formats import is_made_first
from partita.core.profile import Provenance
from partita.planning.candidates import candidates, trial_points
from partita.planning.runtime_choice import decide
from partita.profiling.choice_store import choice_path, load_choice, save_choice
from partita.profiling.choice_terms import Schedule
from partita.system.instructions import instructions

POINTS = [(2, 1), (2, 8), (1, 1), (1, 8)]


def table(*ms: float) -> dict[tuple[int, int], float]:
    return dict(zip(POINTS, ms, strict=True))


def test_a_candidates_key_says_all_that_makes_it_different() -> None:
    plain = Candidate(runtime="openvino")
    same = Candidate(runtime="openvino", options={"streams": 2, "hint": "latency"})
    other = Candidate(runtime="openvino", options={"hint": "latency", "streams": 2})
    assert plain.key == "openvino"
    assert same.key == other.key == "openvino hint=latency streams=2"
    assert Candidate(runtime="t", process={"arena": True}).key == "t process.arena=true"


def test_lower_precision_is_a_candidate_only_if_allowed_and_the_cpu_has_instructions_for_it() -> None:
    runtimes = ("onnxruntime", "openvino")
    both = {"avx512_vnni", "avx512_bf16"}
    assert [c.key for c in candidates(runtimes, instructions=both)] == ["onnxruntime", "openvino"]
    assert not any(c.precision for c in candidates(runtimes, instructions={"avx2"}, lower=True))
    low = [c.key for c in candidates(runtimes, instructions=both, lower=True) if c.precision]
    assert low == ["onnxruntime precision=int8", "openvino precision=bf16"]
    items = {
        c.key for c in candidates(runtimes, instructions=both, lower=True, calibration="ab") if c.precision
    }
    static = {f"{runtime} calibration=ab precision=int8" for runtime in runtimes}
    assert items - {*low} == static
    assert not any(c.precision for c in candidates(runtimes, instructions=both, calibration="ab"))
    assert not any(
        c.precision for c in candidates(runtimes, instructions={"avx2"}, lower=True, calibration="ab")
    )
    assert Candidate(runtime="openvino", options={"precision": "f32"}).precision == ""


def test_points_begin_with_all_cores_and_one_item() -> None:
    assert trial_points(2, [1, 2, 4, 8, 16, 32])[:3] == ((2, 1), (2, 8), (1, 1))
    assert trial_points(1, [1]) == ((1, 1),)
    assert len(set(trial_points(16, [1, 2, 4, 8]))) == len(trial_points(16, [1, 2, 4, 8]))


def test_the_winner_is_the_best_over_all_batch_sizes() -> None:
    found = decide(
        {"a": table(1, 8, 2, 16), "b": table(1.2, 3, 2.4, 6), "c": table(9, 9, 9, 9)},
        reference="a",
        sockets=(2,),
        max_batch=8,
    )
    assert found.winner == "b"
    assert found.by_batch[1] == "a"
    assert found.by_batch[8] == "b"
    assert found.slower["b"] == 1.0
    assert found.slower["c"] > found.slower["a"] > 1.0


def test_the_reference_stays_unless_another_is_clearly_faster() -> None:
    near = {"a": table(1, 4, 1, 4), "b": table(0.99, 3.96, 0.99, 3.96)}
    assert decide(near, reference="a", sockets=(2,), max_batch=8).winner == "a"
    assert decide(near, reference="b", sockets=(2,), max_batch=8).winner == "b"


def test_only_points_that_all_have_count() -> None:
    few = {"a": {(2, 1): 1.0}, "b": table(1.5, 2, 3, 4)}
    assert decide(few, reference="b", sockets=(2,), max_batch=8).winner == "a"


def test_a_candidate_that_runs_nothing_loses() -> None:
    found = decide(
        {"a": table(1, 2, 3, 4), "b": table(inf, inf, inf, inf)}, reference="b", sockets=(2,), max_batch=4
    )
    assert found.winner == "a"
    assert isinf(found.slower["b"])


def test_nothing_but_the_reference_leaves_the_reference() -> None:
    assert decide({}, reference="a", sockets=(2,), max_batch=4).winner == "a"


CHOICE = Choice(
    cores=2,
    max_batch=8,
    items=64,
    winner="openvino",
    by_batch={1: "onnxruntime", 8: "openvino"},
    assessments=(
        Assessment(candidate=Candidate(runtime="onnxruntime"), verdict=Verdict.REFERENCE),
        Assessment(
            candidate=Candidate(runtime="openvino"),
            verdict=Verdict.ADMITTED,
            reason="fastest",
            version="1",
            deviations=(Deviation(output="y", absolute=0.1, relative=1e-4, agrees=True),),
            speeds=(Speed(threads=2, batch=1, mean_ms=1.5),),
        ),
    ),
)


def test_a_choice_is_kept_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "choices" / "a.json"
    assert load_choice(path) is None
    save_choice(path, CHOICE)
    assert load_choice(path) == CHOICE
    assert CHOICE.won.candidate.runtime == "openvino"
    path.write_text(path.read_text().replace('"winner": "openvino"', '"winner": "gone"'))
    assert load_choice(path) is None


def test_a_batch_size_may_have_a_winner_of_its_own() -> None:
    assert CHOICE.for_batch(None).candidate.key == "openvino"
    assert CHOICE.for_batch(1).candidate.key == "onnxruntime"
    assert CHOICE.for_batch(2).candidate.key == "openvino"
    assert CHOICE.for_batch(64).candidate.key == "openvino"
    assert replace(CHOICE, by_batch={1: "gone"}).for_batch(1).candidate.key == "openvino"


def test_what_lower_precision_gains_stands_beside_what_it_costs() -> None:
    low = Assessment(
        candidate=Candidate(runtime="onnxruntime", options={"precision": "int8"}),
        verdict=Verdict.ADMITTED,
        deviations=(Deviation(output="y", absolute=0.1, relative=0.02, agrees=True, top1=0.98),),
        speeds=(Speed(threads=2, batch=1, mean_ms=0.5), Speed(threads=1, batch=1, mean_ms=7.0)),
    )
    choice = replace(CHOICE, assessments=(*CHOICE.assessments, low))
    lowered = choice.lowered(low)
    assert lowered is not None
    assert (lowered.precision, lowered.deviation, lowered.top1) == ("int8", 0.02, 0.98)
    assert lowered.speedup == pytest.approx(3.0)
    gained, lost = "int8, 3.00 times as fast as without", "outputs off by up to 0.02"
    assert str(lowered) == f"{gained}: {lost}, the largest value in the same place in 98.0% of items"
    assert choice.lowered(CHOICE.won) is None
    untimed = choice.lowered(replace(low, speeds=()))
    assert untimed is not None
    assert untimed.speedup is None


@pytest.mark.parametrize("text", ["", "{}", '{"partita_choice": 9}', "\0"])
def test_a_file_that_is_no_choice_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert load_choice(tmp_path / "a.json") is None


def test_lower_precision_has_a_choice_of_its_own(tmp_path: Path) -> None:
    here = Provenance(model_hash="m", runtime="onnxruntime", runtime_version="1", cpu_model="c", topology="t")
    plain = choice_path(tmp_path, here, None)
    allowances = [Allowance(deviation=0.05), Allowance(top1=0.05), Allowance(deviation=0.05, top1=0.05)]
    assert len({plain, *(choice_path(tmp_path, here, one) for one in allowances)}) == 4
    assert choice_path(tmp_path, here, None) == plain


def test_instructions_are_read_from_the_kernel(tmp_path: Path) -> None:
    assert instructions(tmp_path) == frozenset()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512_vnni\n")
    assert instructions(tmp_path) == {"fpu", "avx2", "avx512_vnni"}


class Hands:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def now_s(self) -> float:
        return self.now

    def wall_s(self) -> float:
        return self.now


def test_what_is_made_once_takes_no_time_of_the_budget_within_limits() -> None:
    clock = Hands()
    schedule = Schedule(clock, 30.0)
    clock.now += 50.0
    assert schedule.left_s == -20.0
    schedule.grant(40.0)
    assert (schedule.elapsed_s, schedule.left_s, schedule.until_s) == (10.0, 20.0, 170.0)
    schedule.grant(-5.0)
    assert schedule.left_s == 20.0
    clock.now += 1000.0
    schedule.grant(1000.0)
    assert schedule.grantable_s == 0.0
    assert schedule.until_s == 100.0 + 30.0 + 90.0


def test_torch_models_are_made_into_something_else_for_the_other_runtimes() -> None:
    assert is_made_first(Path("m.pt"), "onnxruntime")
    assert is_made_first(Path("m.safetensors"), "openvino")
    assert is_made_first(Path("m.pt2"), "torch-compile")
    assert not is_made_first(Path("m.pt"), "torch-script")
    assert not is_made_first(Path("m.onnx"), "openvino")
    assert not is_made_first(Path("m.xml"), "openvino")
