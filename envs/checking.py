"""Checks that an environment keeps to Gymnasium's interface, before a run begins."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from drlhp.errors import reason_of
from drlhp.runtime.pulse import doing

from .bodies import TASKS
from .generic import build_env
from .registry import MOVING_DOT_ID, EnvError, find_spec, is_atari, is_body
from .table import env_info

N_STEPS = 3
PORT_IT = (
    "port it to Gymnasium's interface (reset() returns two values and step() five), or wrap it with the package shimmy"
)


def check_env(env_id: str, *, rewards_count: bool = True) -> None:
    """Takes the first steps in an environment; raises EnvError if one returns what Gymnasium's interface excludes.

    Args:
        rewards_count: something learns from the true reward, or answers by it, so NaN and infinity are excluded too.
    """
    info = env_info(env_id)
    if info.env_id == MOVING_DOT_ID or info.env_id in TASKS:
        return
    spec = find_spec(env_id)
    if is_atari(spec) or is_body(spec):
        return
    with build_env(spec, info, watched=False) as env:
        inside = env.unwrapped  # first, because wrappers hide which value is wrong
        inside.action_space.seed(0)
        _check_reset(env_id, _told(env_id, "reset", inside.reset, seed=0))
        for _ in range(N_STEPS):
            found = _told(env_id, "step", inside.step, inside.action_space.sample())
            _check_step(env_id, found, rewards_count=rewards_count)
            if found[2] or found[3]:
                break
        _check_observation(env_id, _told(env_id, "reset", env.reset, seed=0)[0])
        env.action_space.seed(0)
        observation, reward, *_ = _told(env_id, "step", env.step, env.action_space.sample())
        _check_observation(env_id, observation)
        _check_number(env_id, "reward", reward, finite=rewards_count)


def _told(env_id: str, what: str, method: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns what a method of an environment does; raises EnvError with the message of whatever it raises."""
    try:
        with doing(f"a {what} of {env_id}", foreign=True):
            return method(*args, **kwargs)
    except EnvError:
        raise
    except gymnasium.error.ResetNeeded as error:
        raise EnvError(f"{env_id} wants a reset after its first one: {PORT_IT}.") from error
    except Exception as error:  # a user's environment may raise anything
        reason = f"{type(error).__name__}: {reason_of(error)}"
        raise EnvError(f"{what}() of {env_id} fails ({reason}): fix it.") from error


def _check_reset(env_id: str, found: Any) -> None:
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
        raise EnvError(f"reset() of {env_id} returns {_kind(found)}, not an observation and a dict: {PORT_IT}.")


def _check_step(env_id: str, found: Any, *, rewards_count: bool) -> None:
    if not (isinstance(found, tuple) and len(found) == 5 and isinstance(found[4], dict)):
        raise EnvError(
            f"step() of {env_id} returns {_kind(found)}, not an observation, a reward, two flags and a dict: {PORT_IT}."
        )
    for what, value in zip(("reward", "terminated", "truncated"), found[1:4], strict=True):
        _check_number(env_id, what, value, finite=rewards_count or what != "reward")


def _check_number(env_id: str, what: str, value: Any, *, finite: bool) -> None:
    """Raises EnvError unless a reward or flag is one number, perhaps a finite one; arrays of one number are none."""
    try:
        number = np.asarray(value)
    except Exception:  # of lists that are no array, and of foreign types
        number = np.asarray(None)
    if number.ndim or number.dtype.kind not in "biuf" or (finite and not np.isfinite(number)):
        raise EnvError(
            f"step() of {env_id} returns {_kind(value)} for its {what}: let it return one "
            f"{'finite number' if what == 'reward' else 'bool'}."
        )


def _check_observation(env_id: str, observation: np.ndarray) -> None:
    if not np.isfinite(observation).all():
        raise EnvError(f"an observation of {env_id} holds NaN or infinity: fix the environment.")


def _kind(value: Any) -> str:
    """Returns a few words about what a method returned."""
    if isinstance(value, tuple):
        return f"{len(value)} values"
    shape = getattr(value, "shape", None)
    if shape is not None and shape != ():
        return f"{type(value).__name__} of shape {tuple(shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else type(value).__name__
