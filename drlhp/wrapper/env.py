"""The wrappers for Gymnasium's environments and vector environments.

See docs/wrapper.md for what runs where, and `drlhp.Settings` for every argument.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from drlhp.wrapper.autoreset import Autoreset, said_mode
from drlhp.wrapper.base import PreferenceWrapper
from drlhp.wrapper.description import EnvDescription
from drlhp.wrapper.intake import PREDICTED_REWARD, TRUE_REWARD, Intake, as_numpy, in_kind_of, with_rewards
from drlhp.wrapper.settings import Settings
from drlhp.wrapper.spaces import one_by_one
from drlhp.wrapper.start import telling


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
        settings = Settings.of(type(self).__name__, *args, **kwargs)
        gymnasium.utils.RecordConstructorArgs.__init__(self, _disable_deepcopy=True, **vars(settings))
        gymnasium.Wrapper.__init__(self, env)
        description = EnvDescription.create(
            env.observation_space,
            env.action_space,
            n_envs=1,
            spec=getattr(env, "spec", None),
            name=type(env.unwrapped).__name__,
            metadata=getattr(env, "metadata", None),
            render_mode=getattr(env, "render_mode", None),
        )
        self._start(settings, description)
        if self.system.refusal is not None:
            self.observation_space = telling(env.observation_space)
        self._intake = Intake(description.env_id, 1, vector=False)
        self._autoreset = Autoreset(AutoresetMode.NEXT_STEP if _has_autoreset(env) else None, 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; the unfinished segment of the last one is dropped."""
        system = self.system
        system.check_open()
        with system.unbroken():
            with self._intake.calling("reset"):
                returned = self.env.reset(seed=seed, options=options)
            observation, info = self._intake.reset(returned)
            observations = self._alone(observation)
            checked = system.checked(observations)
            system.collection.forget()
            self._autoreset.reset(np.ones(1, np.bool_), checked)
            system.observe(checked, observations)
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps the environment; the reward is the predicted one if there is one."""
        system = self.system
        system.check_open()
        encoder = system.actions
        encoded = encoder.encode(as_numpy(action)[None] if encoder.takes_arrays else [action])
        with system.unbroken():
            system.begin_step(encoded, lambda: [self.env.render()])
            with self._intake.calling("step"):
                returned = self.env.step(action)
            system.left()
            observation, reward, terminated, truncated, info = self._intake.step(returned)
            true, done = self._intake.rewards(reward), self._intake.done(terminated, truncated)
            observations = self._alone(observation)
            checked = system.checked(observations)
            if self._autoreset.undecided:
                warnings.warn(
                    f"{system.info.env_id} was stepped after the end of an episode, so it is taken to reset itself: "
                    "call reset then, or wrap it in gymnasium.wrappers.Autoreset first.",
                    stacklevel=2,
                )
            valid = self._autoreset.valid(checked, true, done, info)
            predicted = system.end_step(true, done, valid)
            system.observe(checked, observations)
        info = {**(info or {}), TRUE_REWARD: float(true[0])}
        if predicted is not None:
            info[PREDICTED_REWARD] = float(predicted[0])
            if system.predicted.replace_true:
                reward = float(predicted[0])
        return observation, reward, terminated, truncated, info

    def _alone(self, observation: Any) -> Any:
        """Returns one observation as the encoder takes several."""
        return as_numpy(observation)[None] if self.system.observations.takes_arrays else [observation]

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
        settings = Settings.of(type(self).__name__, *args, **kwargs)
        VectorWrapper.__init__(self, env)
        # Some vector environments, such as SuperSuit's, have only spaces, which are those of one environment.
        self.single_observation_space = getattr(env, "single_observation_space", env.observation_space)
        self.single_action_space = getattr(env, "single_action_space", env.action_space)
        spec, name = _spec_and_name(env)
        metadata = getattr(env, "metadata", None) or {}
        description = EnvDescription.create(
            self.single_observation_space,
            self.single_action_space,
            n_envs=env.num_envs,
            spec=spec,
            name=name,
            metadata=metadata,
            render_mode=getattr(env, "render_mode", None),
        )
        # The environment's attribute comes first: before Gymnasium 1.4, environments of one class share their metadata,
        # which hold the mode of the newest one.
        said = getattr(env.unwrapped, "autoreset_mode", None) or metadata.get("autoreset_mode")
        self._autoreset = Autoreset(said_mode(said, description.env_id), env.num_envs)
        if not self._autoreset.found:
            warnings.warn(
                f"{description.env_id} does not say how it resets, so the wrapper finds out at the end of the first "
                "episode: set its metadata['autoreset_mode'] to a gymnasium.vector.AutoresetMode.",
                stacklevel=2,
            )
        self._start(settings, description)
        self._intake = Intake(description.env_id, env.num_envs, vector=True)
        self._observations = batch_space(self.single_observation_space, env.num_envs)
        self._actions = batch_space(self.single_action_space, env.num_envs)
        self._closed = False

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts episodes; the unfinished segments of the last ones are dropped."""
        system = self.system
        system.check_open()
        # With AutoresetMode.DISABLED, users may reset only some. Gymnasium removes this mask from the options.
        mask = as_numpy((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))).astype(np.bool_)
        with system.unbroken():
            with self._intake.calling("reset"):
                returned = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
            observations, info = self._intake.reset(returned)
            each = one_by_one(system.observations, self._observations, observations)
            checked = system.checked(each)
            system.collection.forget(mask)
            self._autoreset.reset(mask, checked)
            system.observe(checked, each)
        return observations, info

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Steps all environments; the rewards are the predicted ones if there are any."""
        system = self.system
        system.check_open()
        encoder = system.actions
        encoded = encoder.encode(one_by_one(encoder, self._actions, actions))
        with system.unbroken():
            system.begin_step(encoded, self.env.render)
            with self._intake.calling("step"):
                returned = self.env.step(actions)
            system.left()
            observations, own, terminated, truncated, info = self._intake.step(returned)
            rewards, done = self._intake.rewards(own), self._intake.done(terminated, truncated)
            each = one_by_one(system.observations, self._observations, observations)
            checked = system.checked(each)
            valid = self._autoreset.valid(checked, rewards, done, info)
            predicted = system.end_step(rewards, done, valid)
            system.observe(checked, each)
        info = with_rewards(info, self.num_envs, rewards, predicted)
        if predicted is not None and system.predicted.replace_true:
            own = in_kind_of(own, predicted)
        return observations, own, terminated, truncated, info

    def close(self, **kwargs: Any) -> None:
        """Ends the processes and the environments; may be called twice."""
        self.system.close()
        if not self._closed and not self.env.closed:
            self._closed = True
            self.env.close(**kwargs)


def _has_autoreset(env: gymnasium.Env[Any, Any]) -> bool:
    """Returns whether Gymnasium's Autoreset is around an environment, which resets in a step of its own."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.Autoreset):
            return True
        env = env.env
    return False


def _spec_and_name(env: VectorEnv[Any, Any, Any]) -> tuple[Any, str]:
    """Returns the spec of one of the environments, if it can be had, and a name to use without one."""
    inside, spec = env.unwrapped, getattr(env, "spec", None)
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
