"""The wrappers for Gymnasium's environments and vector environments.

See docs/wrapper.md for what runs where, and `drlhp.Settings` for every argument.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from drlhp.wrapper.base import PREDICTED_REWARD, TRUE_REWARD, PreferenceWrapper
from drlhp.wrapper.description import EnvDescription
from drlhp.wrapper.settings import Settings
from drlhp.wrapper.spaces import one_by_one


class HumanPreferencesEnvWrapper(
    PreferenceWrapper, gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs
):
    """One environment whose reward is learned from preferences; arguments after `env` are those of `Settings`.

    Until the predictor is trained (`using_reward_from_predictor`), `step` returns the environment's own reward.
    `info` has both: `true_reward`, and `predicted_reward` as soon as there is one. A step in which the environment
    resets itself (gymnasium.wrappers.Autoreset) has a reward of 0.

    Raises UserError, whose message is one sentence with the fix, and ChildError if a process beside this one died.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *args: Any, **kwargs: Any) -> None:
        """Wraps an environment, and starts the processes that the settings want."""
        self._check_kind(env, gymnasium.Env)
        settings = Settings(*args, **kwargs)
        gymnasium.utils.RecordConstructorArgs.__init__(self, _disable_deepcopy=True, **vars(settings))
        gymnasium.Wrapper.__init__(self, env)
        description = EnvDescription.create(
            env.observation_space,
            env.action_space,
            n_envs=1,
            spec=env.spec,
            name=type(env.unwrapped).__name__,
            metadata=env.metadata,
            render_mode=env.render_mode,
        )
        self._start(settings, description)
        self._resetting = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; the unfinished segment of the last one is dropped."""
        self.system.check_open()
        observation, info = self.env.reset(seed=seed, options=options)
        self.system.collection.forget()
        self._resetting = False
        self._observe(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps the environment; the reward is the predicted one if there is one."""
        system = self.system
        system.check_open()
        encoder = system.actions
        encoded = encoder.encode(np.asarray([action]) if encoder.takes_arrays else [action])
        system.begin_step(encoded, lambda: [self.env.render()])
        observation, reward, terminated, truncated, info = self.env.step(action)
        true = np.array(reward, np.float64).reshape(1)  # some environments return an array of one reward
        done, valid = np.array([terminated or truncated]), np.array([not self._resetting])
        predicted = system.end_step(true, done, valid)
        self._resetting = bool(done[0])
        self._observe(observation)
        info = {**info, TRUE_REWARD: float(true[0])}
        if predicted is not None:
            info[PREDICTED_REWARD] = float(predicted[0])
            if system.predicted.replace_true:
                reward = float(predicted[0])
        return observation, reward, terminated, truncated, info  # type: ignore[return-value]

    def _observe(self, observation: Any) -> None:
        arrays = self.system.observations.takes_arrays
        self.system.observe(np.asarray(observation)[None] if arrays else [observation])

    def close(self) -> None:
        """Ends the processes and the environment; may be called twice."""
        self.system.close()
        self.env.close()


class HumanPreferencesVectorEnv(PreferenceWrapper, VectorWrapper):
    """Many environments at once, with one predictor; arguments after `env` are those of `Settings`.

    `info` has arrays `true_reward` and, as soon as there is a predictor, `predicted_reward`. If the environments reset
    in a step of their own (Gymnasium's AutoresetMode.NEXT_STEP), that step's reward is 0.

    Raises UserError, whose message is one sentence with the fix, and ChildError if a process beside this one died.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *args: Any, **kwargs: Any) -> None:
        """Wraps a vector environment, and starts the processes that the settings want."""
        self._check_kind(env, VectorEnv)
        VectorWrapper.__init__(self, env)
        spec, name = _spec_and_name(env)
        description = EnvDescription.create(
            env.single_observation_space,
            env.single_action_space,
            n_envs=env.num_envs,
            spec=spec,
            name=name,
            metadata=env.metadata,
            render_mode=env.render_mode,
        )
        self._start(Settings(*args, **kwargs), description)
        # The environment's attribute comes first: before Gymnasium 1.4, environments of one class share their metadata,
        # which hold the mode of the newest one.
        mode = getattr(env.unwrapped, "autoreset_mode", env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._next_step = mode == AutoresetMode.NEXT_STEP
        self._resetting = np.zeros(env.num_envs, np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts episodes; the unfinished segments of the last ones are dropped."""
        self.system.check_open()
        # With AutoresetMode.DISABLED, users may reset only some. Gymnasium removes this mask from the options.
        mask = np.array((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        observations, info = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        self.system.collection.forget(mask)
        self._resetting[mask] = False
        self._observe(observations)
        return observations, info

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Steps all environments; the rewards are the predicted ones if there are any."""
        system = self.system
        system.check_open()
        encoder = system.actions
        encoded = encoder.encode(one_by_one(encoder, self.env.action_space, actions))
        system.begin_step(encoded, self.env.render)
        observations, rewards, terminated, truncated, info = self.env.step(actions)
        done, valid = terminated | truncated, ~self._resetting
        predicted = system.end_step(rewards, done, valid)
        self._resetting = done & self._next_step
        self._observe(observations)
        everywhere = np.ones(self.num_envs, np.bool_)
        # Copies, because the user may change the returned rewards in place.
        info = {**info, TRUE_REWARD: rewards.copy(), f"_{TRUE_REWARD}": everywhere}
        if predicted is not None:
            info |= {PREDICTED_REWARD: predicted.copy(), f"_{PREDICTED_REWARD}": everywhere}
            if system.predicted.replace_true:
                rewards = predicted
        return observations, rewards, terminated, truncated, info

    def _observe(self, observations: Any) -> None:
        self.system.observe(one_by_one(self.system.observations, self.env.observation_space, observations))

    def close(self, **kwargs: Any) -> None:
        """Ends the processes and the environments; may be called twice."""
        self.system.close()
        if not self.env.closed:
            self.env.close(**kwargs)


def _spec_and_name(env: VectorEnv[Any, Any, Any]) -> tuple[Any, str]:
    """Returns the spec of one of the environments, if it can be had, and a name to use without one."""
    inside, spec = env.unwrapped, env.spec
    if not isinstance(inside, (AsyncVectorEnv, SyncVectorEnv)):
        return spec, type(inside).__name__
    if isinstance(inside, SyncVectorEnv) or spec_can_be_sent(lambda *asked: inside.call(*asked)[0]):
        spec = inside.get_attr("spec")[0] or spec
    return spec, "" if spec else shown_name(inside.call("__str__")[0])


def spec_can_be_sent(ask: Callable[..., Any]) -> bool:
    """Returns whether an environment in another process can send its spec.

    If that process tries to send a spec that cannot be pickled, it ends. A spec holds the functions that were passed to
    Gymnasium's wrappers, and those are often lambdas.

    Args:
        ask: calls a method of the environment in that process.
    """
    return not any(ask("has_wrapper_attr", function) for function in ("func", "episode_trigger"))


def shown_name(shown: str) -> str:
    """Returns an environment's id, or else its class, from how Gymnasium shows it: `<Monitor<LampEnv instance>>`."""
    found = re.search(r"([^<>]+?)(?: instance)?>+$", shown)
    return found[1] if found else shown


def _show_settings(constructor: Any) -> None:
    """Lets `help` and editors show the names and defaults of `Settings` instead of `*args, **kwargs`."""
    own = list(inspect.signature(constructor).parameters.values())[:2]
    theirs = inspect.signature(Settings).parameters.values()
    constructor.__signature__ = inspect.Signature([*own, *theirs])


_show_settings(HumanPreferencesEnvWrapper.__init__)
_show_settings(HumanPreferencesVectorEnv.__init__)
