"""Synthetic teachers: the true reward or a function decides which of two segments is better."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import os
import reprlib
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from drlhp.data.comparison import Choice, Comparison
from drlhp.data.segment import Segment
from drlhp.errors import UserError
from drlhp.runtime.pulse import doing


@dataclass(frozen=True)
class TeacherParameters:
    """The errors that a synthetic teacher makes; none by default (Lee et al. 2021, "B-Pref", section 3)."""

    beta: float = math.inf  # rationality, per unit of return; infinite: always the better segment
    gamma: float = 1.0  # myopia: discount per agent step, counted back from the segment's end
    mistake: float = 0.0  # probability that a preference is reversed
    skip: float = 0.0  # can't tell if both returns are below this share of a usual return
    equal: float = 0.0  # equal if the returns differ by less than this share of a usual return
    # Subtracted from the true reward at the end of a game. Segments do not record that end, so it is subtracted when
    # they are cut (`a2c.runner.Runner`); here it is part of the teacher's name.
    end_penalty: float = 0.0


# The teachers of B-Pref with its values (its experiments' scripts; beta -1 there is infinite here).
NAMED_TEACHERS = {
    "oracle": TeacherParameters(),
    "stoc": TeacherParameters(beta=1.0),
    "mistake": TeacherParameters(mistake=0.1),
    "skip": TeacherParameters(skip=0.1),
    "equal": TeacherParameters(equal=0.1),
    "myopic": TeacherParameters(gamma=0.9),
}
# A usual return is the mean over this many segments: B-Pref's mean over ten episodes, of twenty segments each.
USUAL_OVER = 200


def discounted_return(rewards: np.ndarray, gamma: float) -> float:
    """Returns the sum over t of gamma^(T - t) r_t for rewards (T,): the last step counts in full (B-Pref, sec. 3)."""
    return float(rewards @ gamma ** np.arange(len(rewards) - 1, -1, -1))


def preference_probability(a: float, b: float, beta: float) -> float:
    """Returns P[a > b] = exp(beta a) / (exp(beta a) + exp(beta b)) for finite beta, without overflow."""
    return 0.5 + 0.5 * math.tanh(0.5 * beta * (a - b))


def true_rewards(segment: Segment) -> np.ndarray:
    """Returns the environment's own rewards, (T,) float64; those of pixel environments are clipped to [-1, 1].

    Raises UserError if one is NaN or infinity.
    """
    if not np.isfinite(segment.rewards).all():
        raise UserError(
            f"the true reward of {segment.env_id} is NaN or infinity, so segments cannot be compared: fix the "
            "environment, or let people answer."
        )
    return segment.rewards.astype(np.float64)


class FunctionRewards:
    """A function in place of the true reward, named as `module:function`.

    It takes a `drlhp.data.segment.Segment` of T steps and returns one number for the segment, or an array (T,) with one
    number for each step. It may use the segment's `stacked()` observations, as the networks see them, its `actions`,
    its true `rewards` and its length, and must not change them (arrays are read-only). It is called twice for each
    answer, in the main process.
    """

    def __init__(self, name: str) -> None:
        """Raises UserError if there is no such function."""
        self.name, self.function = name, load_function(name)

    def __call__(self, segment: Segment) -> np.ndarray:
        """Returns float64, () or (T,). Raises UserError if the function fails or returns something else."""
        try:
            with doing(f"an answer of the teacher {self.name}", foreign=True), no_exit():
                value = self.function(_read_only(segment))
            array = np.asarray(value)
        except (Exception, SystemExit) as error:
            raise UserError(f"the teacher {self.name} failed with {_first_line(error)}; fix it.") from error
        if array.dtype.kind not in "biuf":
            what = " ".join(reprlib.repr(value).split())
            raise UserError(f"the teacher {self.name} returned {what}; it must return numbers.")
        if array.shape not in ((), (len(segment),)):
            raise UserError(
                f"the teacher {self.name} returned an array of shape {array.shape}; it must return one number, or one "
                f"for each of the segment's {len(segment)} steps."
            )
        if not np.isfinite(array).all():
            raise UserError(f"the teacher {self.name} returned NaN or infinity; it must return finite numbers.")
        return array.astype(np.float64)


@contextlib.contextmanager
def no_exit() -> Iterator[None]:
    """Lets `os._exit` raise SystemExit in the block, because the run would end without a word, as if all were well."""
    leave, process = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:  # a fork, which may leave
            leave(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = leave


def _read_only(segment: Segment) -> Segment:
    """Returns the same segment with read-only arrays, because they are stored after the teacher has seen them."""
    arrays = {name: getattr(segment, name).view() for name in ("observations", "actions", "rewards")}
    for array in arrays.values():
        array.flags.writeable = False
    return dataclasses.replace(segment, **arrays)


def _first_line(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def load_function(name: str) -> Callable[[Segment], Any]:
    """Returns the function `module:function`; the current folder is searched too.

    Raises:
        UserError: if there is no such module or function, or the module cannot be imported.
    """
    module_name, _, function_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that no file there hides a module of this program
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(
                f"--teacher {name}: there is no module {module_name}; write it as in an import, and run from the "
                "folder that holds it."
            ) from error
        reason = _first_line(error)
        raise UserError(f"--teacher {name}: importing {module_name} failed with {reason}; fix it.") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        place = getattr(module, "__file__", None) or module_name
        what = "nothing called" if function is None else "no function"
        raise UserError(f"--teacher {name}: {place} has {what} {function_name}; give the name of a function in it.")
    return function


class SyntheticTeacher:
    """Prefers the segment with the higher true return, except for the errors of its parameters (B-Pref, section 3).

    Thresholds are shares of the mean return of the segments that it judged last; B-Pref takes the policy's mean return
    over as many steps. If that mean is not positive, neither threshold applies. (B-Pref's PEBBLE multiplies by the
    share twice, its PrefPPO once, as here.) Unlike B-Pref's, whose rewards hardly ever tie, a teacher with infinite
    beta calls equal (discounted) returns equal (paper, section 3.3).
    """

    KEPT = ("rng", "_recent")

    def __init__(
        self,
        name: str = "oracle",
        parameters: TeacherParameters = NAMED_TEACHERS["oracle"],
        rng: np.random.Generator | None = None,
        rewards: Callable[[Segment], np.ndarray] = true_rewards,
    ) -> None:
        """`rng` draws random answers and mistakes; `rewards` replaces the true rewards."""
        self.name, self.parameters, self.rewards = name, parameters, rewards
        self.rng = rng or np.random.default_rng(0)
        self._recent: deque[float] = deque(maxlen=USUAL_OVER)

    def poll(self, comparison: Comparison) -> Choice:
        """Returns the answer. Raises UserError if the function that replaces the rewards fails."""
        parameters = self.parameters
        rewards = self.rewards(comparison.a), self.rewards(comparison.b)
        if parameters.gamma != 1 and any(r.ndim == 0 for r in rewards):
            raise UserError(
                "--teacher_gamma weighs step by step, but the function gives one number for a whole segment; leave it "
                "out, or return an array of one number per step."
            )
        a, b = (float(r.sum()) for r in rewards)
        self._recent.extend((a, b))
        usual = max(0.0, statistics.fmean(self._recent))
        if parameters.skip * usual > max(0.0, a, b):
            return Choice.INCOMPARABLE
        if abs(a - b) < parameters.equal * usual:
            return Choice.EQUAL
        if parameters.gamma != 1:
            a, b = (discounted_return(r, parameters.gamma) for r in rewards)
        if math.isinf(parameters.beta) and math.isclose(a, b, abs_tol=1e-6):
            return Choice.EQUAL
        return self._preferred(a, b)

    def _preferred(self, a: float, b: float) -> Choice:
        """Returns the better segment by (discounted) return: random if beta is finite, and reversed by mistake."""
        beta = self.parameters.beta
        prefers_a = a > b if math.isinf(beta) else self.rng.random() < preference_probability(a, b, beta)
        if self.rng.random() < self.parameters.mistake:
            prefers_a = not prefers_a
        return Choice.A if prefers_a else Choice.B


def check_name(name: str) -> None:
    """Raises UserError if the name is neither a teacher's nor of the form module:function."""
    module, colon, function = name.partition(":")
    if colon and (not module or not function or "/" in module or module.endswith(".py")):
        raise UserError(
            f"--teacher must be module:function as in an import, such as examples.dot_left:to_the_left, not '{name}'."
        )
    if not colon and name not in NAMED_TEACHERS:
        raise UserError(f"--teacher must be one of {', '.join(NAMED_TEACHERS)}, or module:function, not '{name}'.")


def synthetic_teacher(name: str, rng: np.random.Generator, **given: float | None) -> SyntheticTeacher:
    """Returns the teacher of a name in NAMED_TEACHERS, or an oracle for the rewards of a function `module:function`.

    The parameters `given` (unless None) replace the teacher's own. Its name tells the differences, for example
    `oracle(mistake=0.2)`. Raises UserError if there is no such function.
    """
    own = NAMED_TEACHERS.get(name, NAMED_TEACHERS["oracle"])
    rewards = true_rewards if name in NAMED_TEACHERS else FunctionRewards(name)
    changes = {key: value for key, value in given.items() if value not in (None, getattr(own, key))}
    signature = ",".join(f"{key}={value:g}" for key, value in changes.items())
    signed = f"{name}({signature})" if changes else name
    return SyntheticTeacher(signed, dataclasses.replace(own, **changes), rng, rewards)
