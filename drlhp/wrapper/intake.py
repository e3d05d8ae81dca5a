"""What environments return, taken in at one place: converted to NumPy's arrays and checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from drlhp.errors import UserError, reason_of

API = (
    "let reset return (observation, info), and step (observation, reward, terminated, truncated, info) with one number "
    "as the reward; gymnasium.utils.env_checker.check_env(env) says what differs."
)
# Code between the wrapper and an environment, which fails on what the environment returns.
BETWEEN = (
    *("drlhp.wrapper", "gymnasium.vector", "gymnasium.wrappers", "gymnasium.utils"),
    *("stable_baselines3", "supersuit", "multiprocessing"),
)
TRUE_REWARD, PREDICTED_REWARD = "true_reward", "predicted_reward"  # keys of info
ENDED = (EOFError, ConnectionError)  # what it raises if a worker has ended
MISTAKES = (TypeError, ValueError, AttributeError, LookupError, AssertionError, *ENDED)


def as_numpy(values: Any) -> np.ndarray:
    """Returns an array of the same values; torch tensors may be on any device, also in a list."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return np.asarray(values.float() if values.dtype == torch.bfloat16 else values)  # NumPy has no bfloat16
    if isinstance(values, (list, tuple)) and any(isinstance(value, torch.Tensor) for value in values):
        values = [as_numpy(value) for value in values]
    try:
        return np.asarray(values)
    except ValueError:  # lists of unequal length, which `numbers` refuses
        return np.asarray(values, dtype=object)


def without_tensors(value: Any) -> Any:
    """Returns an observation or action of any space, with arrays in place of torch tensors."""
    if isinstance(value, Mapping):
        return {name: without_tensors(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(without_tensors(part) for part in value)
    return as_numpy(value) if isinstance(value, torch.Tensor) else value


def numbers(values: Any) -> np.ndarray:
    """Returns an array of numbers. Raises TypeError or ValueError if the values are none."""
    array = as_numpy(values)
    if array.dtype == object and not any(value is None for value in array.flat):
        array = array.astype(np.float64)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{shown(values)} is no number")
    return array


def shown(values: Any) -> str:
    """Returns values as an error's message shows them: in one line, and not too long."""
    words = " ".join(repr(values).split())
    return words if len(words) <= 60 else f"{words[:60]}..."


class Intake:
    """Takes in what `reset` and `step` of some environments return.

    Raises UserError, which names the fault, if they return something else than Gymnasium's interface asks for.
    """

    def __init__(self, env_id: str, n_envs: int, *, vector: bool) -> None:
        """`vector`: it is a vector environment, whose info may be a list."""
        self.env_id, self.n_envs = env_id, n_envs
        self._kinds = (Mapping, list, tuple) if vector else (Mapping,)  # of info
        self._worked: set[str] = set()  # methods that were called without an error

    @contextlib.contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """Says in one sentence why the first call of `reset` or `step` fails, if not the environment itself fails.

        Vector environments and Gymnasium's wrappers take in what the environment returns before the wrapper sees it.
        """
        try:
            yield
        except MISTAKES as error:
            if method in self._worked or isinstance(error, UserError) or not _is_between(error):
                raise
            what = "ended a worker, whose error stands above" if isinstance(error, ENDED) else "failed"
            raise UserError(f"the first {method} of {self.env_id} {what} ({reason_of(error)}): {API}") from error
        self._worked.add(method)

    def reset(self, returned: Any) -> tuple[Any, Any]:
        """Returns the observations and the info that `reset` returned."""
        return self._parts("reset", returned, 2)

    def step(self, returned: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Returns the observations, rewards, both flags and the info that `step` returned."""
        return self._parts("step", returned, 5)

    def _parts(self, method: str, returned: Any, n: int) -> tuple[Any, ...]:
        if isinstance(returned, (tuple, list)) and len(returned) == n:
            *_, info = returned
            # Some vector environments return a list with one dict for each environment, or at reset for each process.
            if info is None or isinstance(info, self._kinds):
                return tuple(returned)
        raise UserError(f"{method}() of {self.env_id} returned {shown(returned)}, as before Gymnasium 0.26: {API}")

    def rewards(self, values: Any) -> np.ndarray:
        """Returns the rewards of one step as float64 (N,), in new memory."""
        return self._each("reward", values, "a number").astype(np.float64)

    def done(self, *flags: Any) -> np.ndarray:
        """Returns where at least one of the flags is set, (N,) bool."""
        done = np.zeros(self.n_envs, np.bool_)
        for values in flags:
            array = self._each("flag", values, "True or False")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise self._refused("flag", values, "True or False")
            done |= array != 0
        return done

    def _each(self, name: str, values: Any, wanted: str) -> np.ndarray:
        try:
            array = numbers(values)
        except (TypeError, ValueError) as error:
            raise self._refused(name, values, wanted) from error
        if array.size != self.n_envs or array.size not in (1, *array.shape):
            raise self._refused(name, values, wanted)
        return array.reshape(self.n_envs)

    def _refused(self, name: str, values: Any, wanted: str) -> UserError:
        each = f" for each of {self.n_envs} environments" if self.n_envs > 1 else ""
        return UserError(
            f"step() of {self.env_id} returned the {name} {shown(values)}, not {wanted}{each}: fix the environment."
        )


def _is_between(error: BaseException) -> bool:
    """Returns whether an error was raised by code between the wrapper and an environment."""
    place, trace = "", error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        place = place if module.startswith("numpy") else module  # NumPy works for whoever calls it
        trace = trace.tb_next
    return place.startswith(BETWEEN)


def with_rewards(infos: Any, n_envs: int, true: np.ndarray, predicted: np.ndarray | None) -> Any:
    """Returns a vector environment's info with the rewards (N,) in it, the predicted ones if there are any; copies.

    Args:
        infos: a dict of arrays, each with a mask of the environments that have it, or one dict for each environment.
    """
    rewards = {TRUE_REWARD: true} | ({} if predicted is None else {PREDICTED_REWARD: predicted})
    if isinstance(infos, (list, tuple)):
        return [
            {**(info or {}), **{name: float(each[i]) for name, each in rewards.items()}} for i, info in enumerate(infos)
        ]
    everywhere = {f"_{name}": np.ones(n_envs, np.bool_) for name in rewards}
    return {**(infos or {}), **{name: each.copy() for name, each in rewards.items()}, **everywhere}


def in_kind_of(own: Any, rewards: np.ndarray) -> Any:
    """Returns rewards (N,) as a torch tensor on the same device if the environment's own are one."""
    if not isinstance(own, torch.Tensor):
        return rewards
    return torch.as_tensor(rewards, dtype=own.dtype if own.is_floating_point() else torch.float32, device=own.device)
