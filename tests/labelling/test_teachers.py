"""What the synthetic teachers answer: formulas against statistics of many answers, and the teachers of B-Pref."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands.flags import parse
from commands.preflight import try_teacher
from drlhp.data.comparison import Choice, Comparison
from drlhp.data.segment import Segment
from drlhp.errors import UserError
from drlhp.labelling.teachers import (
    NAMED_TEACHERS,
    USUAL_OVER,
    SyntheticTeacher,
    TeacherParameters,
    check_name,
    synthetic_teacher,
)
from envs import env_info
from pref_interface import PrefsConfig, teacher_of

N_DRAWS = 4000
SIGMAS = 4.5  # a right share lies outside in one of 150,000 seeds, and the seeds are fixed


def segment(rewards: Sequence[float], seed: int = 1) -> Segment:
    """Vectors that say nothing, with these rewards."""
    zeros = np.zeros((len(rewards), 2), np.float32)
    actions = np.zeros(len(rewards), np.int64)
    return Segment("Test-v0", zeros, actions, np.array(rewards, np.float32), 1, policy_step=0, seed=seed, fps=15.0)


def pair(a: Sequence[float], b: Sequence[float], flip: bool = False) -> Comparison:
    return Comparison(segment(a, 1), segment(b, 2), flip)


def teacher(name: str = "oracle", seed: int = 0, **parameters: float) -> SyntheticTeacher:
    return synthetic_teacher(name, np.random.default_rng(seed), **parameters)


def judged(teacher: SyntheticTeacher, usual: float) -> SyntheticTeacher:
    """The same teacher after it has judged many segments of a usual return."""
    for _ in range(USUAL_OVER):
        teacher.poll(pair([usual], [usual]))
    return teacher


def assert_share(observed: int, expected: float, n: int = N_DRAWS) -> None:
    deviation = math.sqrt(n * expected * (1 - expected))
    assert abs(observed - n * expected) <= SIGMAS * deviation + 1e-9, (observed / n, expected)


def answers(teacher: SyntheticTeacher, comparison: Comparison, n: int = N_DRAWS) -> Counter[Any]:
    return Counter(teacher.poll(comparison) for _ in range(n))


USUAL = pair([4.0], [4.0])


# Without fault


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((1.0, 0.0, 0.0), (0.0, 0.0, 0.5), Choice.A),
        ((-3.0, 0.0, 0.0), (0.0, -1.0, 0.0), Choice.B),
        ((0.1, 0.2, 0.3), (0.3, 0.2, 0.1), Choice.EQUAL),
        ((1.0, 1.0), (0.5, 0.5, 0.5), Choice.A),
    ],
)
def test_the_oracle_prefers_the_higher_sum(a: tuple[float, ...], b: tuple[float, ...], expected: Choice) -> None:
    oracle = teacher()
    for flip in (False, True):
        assert set(answers(oracle, pair(a, b, flip), 50)) == {expected}


# Rationality and myopia


def closed_form(a: Sequence[float], b: Sequence[float], beta: float, gamma: float) -> float:
    """exp(beta sum_t gamma^(T - t) r_t) over the sum of both, word by word; t from 1 to each segment's own T."""
    powers = [
        math.exp(beta * sum(gamma ** (len(rewards) - t) * r for t, r in enumerate(rewards, start=1)))
        for rewards in (a, b)
    ]
    return powers[0] / sum(powers)


@pytest.mark.parametrize(
    ("a", "b", "beta", "gamma"),
    [
        ((1.0, 0.0, 0.0), (0.0, 0.0, 0.0), 1.0, 1.0),
        ((0.0, 0.0, 1.0), (1.0, 1.0, 0.0), 0.7, 1.0),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), 1.0, 1.0),  # a coin: the model knows no ties
        ((1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.5), 3.0, 0.8),
        ((1.0, 1.0), (0.0, 0.5, 0.5, 0.5, 0.5), 2.0, 0.9),
        ((-1.0, 1.0), (1.0, -1.0, 0.0), 1.5, 0.5),
    ],
)
def test_stochastic_preferences_follow_the_formula(
    a: tuple[float, ...], b: tuple[float, ...], beta: float, gamma: float
) -> None:
    counts = answers(teacher(beta=beta, gamma=gamma), pair(a, b))
    assert_share(counts[Choice.A], closed_form(a, b, beta, gamma))
    assert counts[Choice.A] + counts[Choice.B] == N_DRAWS
    swapped = answers(teacher(seed=1, beta=beta, gamma=gamma), pair(b, a))
    assert_share(swapped[Choice.B], closed_form(a, b, beta, gamma))


@pytest.mark.parametrize("beta", [1e3, math.inf])
def test_great_rationality_always_prefers_the_better(beta: float) -> None:
    assert set(answers(teacher(beta=beta), pair([1e6], [-1e6]), 50)) == {Choice.A}
    assert set(answers(teacher(beta=beta), pair([-1e6], [1e6]), 50)) == {Choice.B}


def test_a_myopic_teacher_weighs_the_last_steps_more() -> None:
    early, late = (1.0, 1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0, 1.5)
    assert teacher().poll(pair(early, late)) == Choice.A
    assert teacher("myopic").poll(pair(early, late)) == Choice.B  # 0.9^4 + 0.9^3 < 1.5
    assert teacher("myopic").poll(pair((1.0, 0.0), (0.0, 1.0))) == Choice.B  # though the sums tie
    assert teacher("myopic").poll(pair((0.0, 1.0), (0.0, 0.0, 1.0))) == Choice.EQUAL  # steps count from the end
    assert teacher(gamma=0.0).poll(pair((9.0, 1.0), (0.0, 2.0))) == Choice.B  # only the last step


# Mistakes


@pytest.mark.parametrize("mistake", [0.0, 0.1, 0.35, 1.0])
def test_mistakes_come_at_their_rate(mistake: float) -> None:
    assert_share(answers(teacher(mistake=mistake), pair([1.0], [0.0]))[Choice.B], mistake)


def test_a_stochastic_preference_may_be_turned_round_too() -> None:
    p, mistake = closed_form([1.0], [0.0], 1.0, 1.0), 0.2
    counts = answers(teacher("stoc", mistake=mistake), pair([1.0], [0.0]))
    assert_share(counts[Choice.A], p * (1 - mistake) + (1 - p) * mistake)


def test_what_is_no_preference_is_not_turned_round() -> None:
    for comparison in (pair([1.0], [1.0]), pair([5.0], [5.04])):
        assert set(answers(judged(teacher("equal", mistake=1.0), 1.0), comparison, 50)) == {Choice.EQUAL}
    assert judged(teacher("skip", mistake=1.0), 1.0).poll(pair([0.0], [0.05])) == Choice.INCOMPARABLE


# Thresholds


@pytest.mark.parametrize(("usual", "scale"), [(1.0, 1.0), (20.0, 20.0)])
def test_thresholds_are_shares_of_the_usual_return(usual: float, scale: float) -> None:
    """One pair among two hundred moves the mean by less than the margins here."""
    for a, b, expected in [
        (0.09, -5.0, Choice.INCOMPARABLE),
        (0.09, 0.08, Choice.INCOMPARABLE),
        (0.12, 0.0, Choice.A),  # one that can be judged is enough
        (0.0, 0.12, Choice.B),
    ]:
        assert judged(teacher("skip"), usual).poll(pair([a * scale], [b * scale])) == expected
    for a, b, expected in [
        (3.0, 3.09, Choice.EQUAL),
        (0.0, -0.09, Choice.EQUAL),
        (3.0, 3.12, Choice.B),
        (0.12, 0.0, Choice.A),
    ]:
        assert judged(teacher("equal"), usual).poll(pair([a * scale], [b * scale])) == expected


def test_thresholds_follow_the_returns_of_late() -> None:
    skip = judged(teacher("skip"), 1.0)
    assert skip.poll(pair([0.5], [0.4])) == Choice.A
    assert judged(skip, 10.0).poll(pair([0.5], [0.4])) == Choice.INCOMPARABLE


def test_a_pair_is_skipped_before_it_is_called_equal() -> None:
    assert judged(teacher(skip=0.1, equal=0.1), 1.0).poll(pair([0.05], [0.06])) == Choice.INCOMPARABLE


@pytest.mark.parametrize("usual", [0.0, -1.0])
def test_where_the_usual_return_is_not_positive_no_threshold_applies(usual: float) -> None:
    for name in ("skip", "equal"):
        assert judged(teacher(name), usual).poll(pair([-1.0], [-1.01])) == Choice.A


def test_thresholds_compare_undiscounted_returns() -> None:
    """As in B-Pref: only the preference itself is myopic."""
    early, nothing = (0.2, 0.0, 0.0), (0.0, 0.0, 0.0)
    assert judged(teacher("skip", gamma=0.1), 1.0).poll(pair(early, nothing)) == Choice.A
    assert judged(teacher("equal", gamma=0.1), 1.0).poll(pair(early, nothing)) == Choice.A


# The named ones


def test_the_named_teachers_have_the_published_values() -> None:
    """B-Pref's scripts: beta -1 (infinite) or 1, gamma 1 or 0.9, and 0.1 for each of the others."""
    expected = {
        "oracle": (math.inf, 1, 0, 0, 0),
        "stoc": (1, 1, 0, 0, 0),
        "mistake": (math.inf, 1, 0.1, 0, 0),
        "skip": (math.inf, 1, 0, 0.1, 0),
        "equal": (math.inf, 1, 0, 0, 0.1),
        "myopic": (math.inf, 0.9, 0, 0, 0),
    }
    assert {name: TeacherParameters(*values) for name, values in expected.items()} == NAMED_TEACHERS


@pytest.mark.parametrize("name", NAMED_TEACHERS)
def test_each_named_teacher_errs_in_its_own_way(name: str) -> None:
    """Shares of A as the answer to pairs of which A is better: much, little, though worthless, or only early."""
    pairs = {
        "much": ([3.0, 3.0], [0.0, 0.0]),
        "little": ([3.0, 3.0], [3.0, 2.95]),
        "worthless": ([0.0, 0.1], [0.0, 0.0]),
        "early": ([3.0, 0.0], [0.0, 2.9]),
    }
    share_of_a = (
        dict.fromkeys(pairs, 1.0)
        | {
            "oracle": {},
            "stoc": {kind: closed_form(a, b, 1.0, 1.0) for kind, (a, b) in pairs.items()},
            "mistake": dict.fromkeys(pairs, 0.9),
            "skip": {"worthless": 0.0},
            "equal": {"little": 0.0, "worthless": 0.0, "early": 0.0},
            "myopic": {"early": 0.0},
        }[name]
    )
    for kind, (a, b) in pairs.items():
        one, n, n_a = judged(teacher(name), 4.0), 400, 0
        for _ in range(n):
            n_a += one.poll(pair(a, b)) == Choice.A
            for _ in range(4):  # so that the usual return stays above 3.2
                one.poll(USUAL)
        assert_share(n_a, share_of_a[kind], n)


# Names and draws


def test_a_teacher_signs_with_its_name_and_what_differs_from_it() -> None:
    assert teacher("mistake").name == "mistake"
    assert teacher("mistake", mistake=0.1, gamma=1.0).name == "mistake"
    assert teacher("oracle", mistake=0.25, beta=2.0).name == "oracle(mistake=0.25,beta=2)"


def test_flags_change_what_a_named_teacher_has() -> None:
    flags: dict[str, Any] = {"teacher_gamma": 0.5, "teacher_mistake": 0.0, "teacher_skip": 0.3}
    built = teacher_of(PrefsConfig(teacher="mistake", **flags), seed=0, n_answers=0)
    assert built.parameters == TeacherParameters(gamma=0.5, mistake=0.0, skip=0.3)
    assert teacher_of(PrefsConfig(teacher="stoc"), seed=0, n_answers=0).parameters == NAMED_TEACHERS["stoc"]


def test_draws_repeat_with_the_seed_but_not_after_more_answers() -> None:
    def series(seed: int, n_answers: int) -> list[Choice | None]:
        coin = teacher_of(PrefsConfig(teacher="stoc"), seed, n_answers)
        return [coin.poll(pair([0.0], [0.0])) for _ in range(64)]

    assert series(3, 10) == series(3, 10)
    assert len({tuple(series(seed, n)) for seed in (0, 3) for n in (0, 10, 11)}) == 6


def test_draws_are_not_those_that_choose_the_pairs() -> None:
    """The interface's generator has the same seed; the sides that it draws must not tell the mistakes."""
    for seed in (0, 7):
        ours = teacher_of(PrefsConfig(), seed, n_answers=0).rng.random(8)
        assert not np.isin(ours, np.random.default_rng(seed).random(1000)).any()


@pytest.mark.parametrize("reward", [math.nan, -math.inf])
def test_the_true_reward_must_be_finite_to_be_compared(reward: float) -> None:
    """A NaN is neither more nor less than anything: every answer was B."""
    for comparison in (pair([1.0, reward], [0.0, 0.0]), pair([0.0, 0.0], [1.0, reward])):
        with pytest.raises(UserError, match=r"^the true reward of Test-v0 is NaN or infinity, .*\.$"):
            teacher().poll(comparison)


# Functions


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes the module `my_teacher` into the current folder, where it is found although it is not on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])

    def write_module(text: str) -> None:
        (tmp_path / "my_teacher.py").write_text(text)

    yield write_module
    sys.modules.pop("my_teacher", None)


def by_function(write: Callable[[str], None], body: str, **parameters: float) -> SyntheticTeacher:
    """The teacher whose function has this body; `s` is the segment."""
    write(f"import numpy as np\ndef judge(s):\n    {body}\n")
    return synthetic_teacher("my_teacher:judge", np.random.default_rng(0), **parameters)


@pytest.mark.parametrize(
    "body",
    [
        "return -s.rewards.sum()",
        "return -s.rewards",
        "return [-float(r) for r in s.rewards]",
        "return int(-s.rewards.sum())",
        "return bool(s.rewards.sum() < 1)",
        "return s.actions * 0 - s.rewards.astype(np.int8)",
        "import torch; return -torch.from_numpy(s.rewards.copy()).sum()",
    ],
)
def test_a_function_takes_the_place_of_the_true_reward(write: Callable[[str], None], body: str) -> None:
    one = by_function(write, body)
    assert one.poll(pair([0.0, 0.0], [0.0, 1.0, 0.0])) == Choice.A
    assert one.poll(pair([1.0, 1.0], [0.0, 0.0])) == Choice.B
    assert one.poll(pair([0.0], [0.0])) == Choice.EQUAL
    assert one.name == "my_teacher:judge"


def test_a_function_may_have_every_fault(write: Callable[[str], None]) -> None:
    assert_share(answers(by_function(write, "return -s.rewards.sum()", beta=1.0), pair([0.0], [1.0]))[Choice.A], 0.731)
    assert_share(answers(teacher("my_teacher:judge", mistake=0.3), pair([0.0], [1.0]))[Choice.B], 0.3)
    assert judged(teacher("my_teacher:judge", skip=0.1), -1.0).poll(pair([0.0], [-0.05])) == Choice.INCOMPARABLE
    assert judged(teacher("my_teacher:judge", equal=0.1), -1.0).poll(pair([-3.0], [-3.05])) == Choice.EQUAL
    sys.modules.pop("my_teacher")
    assert by_function(write, "return s.rewards", gamma=0.5).poll(pair([1.0, 0.0], [0.0, 0.6])) == Choice.B


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 1 / 0", "failed with ZeroDivisionError: division by zero"),
        ("raise KeyError", "failed with KeyError; fix it"),
        ("raise SystemExit", "failed with SystemExit; fix it"),
        ("s.rewards[0] = 9; return s.rewards", "read-only"),
        ("s.rewards = 9; return s.rewards", "FrozenInstanceError"),
        ("return None", "returned None; it must return numbers"),
        ("return 'left'", "returned 'left'; it must return numbers"),
        ("return ['1', '2', '3']", "must return numbers"),
        ("return 1j", "must return numbers"),
        ("return [1.0]", "of shape (1,); it must return one number, or one for each of the segment's 3 steps"),
        ("return s.rewards[:, None]", "of shape (3, 1)"),
        ("return float('nan')", "NaN or infinity"),
        ("return s.rewards * np.array([1, np.inf, 1])", "NaN or infinity"),
    ],
)
def test_a_function_that_cannot_judge_is_told_in_one_sentence(
    write: Callable[[str], None], body: str, reason: str
) -> None:
    with pytest.raises(UserError, match=re.escape(reason)) as caught:
        by_function(write, body).poll(pair([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]))
    message = str(caught.value)
    assert "my_teacher:judge" in message and message.endswith(".") and "\n" not in message


def test_myopia_wants_a_number_for_each_step(write: Callable[[str], None]) -> None:
    with pytest.raises(UserError, match="--teacher_gamma weighs step by step"):
        by_function(write, "return 1.0", gamma=0.9).poll(pair([1.0], [2.0]))
    assert teacher("my_teacher:judge", gamma=1.0).poll(pair([1.0], [2.0])) == Choice.EQUAL


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        ("", "elsewhere:judge", "there is no module elsewhere; write it"),
        ("", "my_teacher.part:judge", "there is no module my_teacher.part"),
        ("", "my_teacher:judge", "my_teacher.py has nothing called judge"),
        ("judge = 3", "my_teacher:judge", "my_teacher.py has no function judge"),
        ("judge = (", "my_teacher:judge", "importing my_teacher failed with SyntaxError"),
        ("import no_such_package", "my_teacher:judge", "No module named 'no_such_package'"),
        ("raise SystemExit(3)", "my_teacher:judge", "failed with SystemExit: 3"),
    ],
)
def test_a_function_that_is_not_there_is_told_in_one_sentence(
    write: Callable[[str], None], text: str, name: str, reason: str
) -> None:
    write(text)
    with pytest.raises(UserError, match=re.escape(reason)) as caught:
        teacher(name)
    message = str(caught.value)
    assert message.startswith(f"--teacher {name}: ") and message.endswith(".") and "\n" not in message


@pytest.mark.parametrize("name", ["orakel", "", "my_teacher:", ":judge", ":", "my_teacher.py:judge", "a/b:judge"])
def test_a_name_of_no_teacher_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"^--teacher must .* not '{name}'\.$"):
        check_name(name)


def test_a_file_in_the_current_folder_takes_the_place_of_no_module_of_ours(
    write: Callable[[str], None], tmp_path: Path
) -> None:
    (tmp_path / "pref_db.py").write_text("raise RuntimeError")
    by_function(write, "return 1.0")
    assert sys.path[-1] == str(tmp_path)


@pytest.mark.parametrize(
    ("env_id", "body"),
    [
        ("MovingDotNoFrameskip-v0", "return s.stacked().mean(axis=(1, 2, 3)) + s.actions + s.frames()[:, 0, 0, 0]"),
        ("CartPole-v1", "return s.stacked()[:, 0] * s.actions"),
        ("Pendulum-v1", "return (s.observations[:, :2] * s.actions).sum(axis=1)"),
    ],
)
def test_a_function_is_tried_on_segments_of_the_environment(
    write: Callable[[str], None], env_id: str, body: str
) -> None:
    """Those of training: an array for each step, also where an episode ends early."""
    write(f"import numpy as np\nlengths = []\ndef judge(s):\n    lengths.append(len(s))\n    {body}\n")
    try_teacher(parse(["gather_initial_prefs", env_id, "--teacher", "my_teacher:judge"]))
    long, short = sys.modules["my_teacher"].lengths
    clip_steps = env_info(env_id).segment_length
    assert clip_steps // 2 <= long <= clip_steps and short == (long + 1) // 2


def test_a_function_that_counts_on_the_length_is_refused_before_the_run(write: Callable[[str], None]) -> None:
    write("def judge(s):\n    return [1.0] * 15\n")
    with pytest.raises(UserError, match="each of the segment's 8 steps"):
        try_teacher(parse(["gather_initial_prefs", "MovingDotNoFrameskip-v0", "--teacher", "my_teacher:judge"]))
