"""The wrapper for Stable-Baselines3's vector environments."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from drlhp.wrapper.base import PreferenceWrapper
from drlhp.wrapper.description import EnvDescription
from drlhp.wrapper.env import shown_name, spec_can_be_sent
from drlhp.wrapper.intake import Intake, with_rewards
from drlhp.wrapper.settings import Settings
from drlhp.wrapper.spaces import one_by_one


class HumanPreferencesSB3VecEnv(PreferenceWrapper, VecEnvWrapper):
    """Environments of Stable-Baselines3 whose reward is learned from preferences.

    Arguments after `venv` are those of `drlhp.Settings`. Each `info` has `true_reward`, and `predicted_reward` as soon
    as there is one. A VecMonitor around this wrapper counts the rewards that the agent learns from, a VecMonitor inside
    it the true ones.

    Raises UserError, whose message is one sentence with the fix, and ChildError if a process beside this one died.
    """

    def __init__(self, venv: VecEnv, *args: Any, **kwargs: Any) -> None:
        """Wraps a vector environment, and starts the processes that the settings want."""
        self._check_kind(venv, VecEnv)
        settings = Settings.of(type(self).__name__, *args, **kwargs)
        with warnings.catch_warnings():  # SuperSuit's environments have a render_mode, but no `get_attr` to ask for it
            warnings.filterwarnings("ignore", "The `render_mode` attribute is not defined")
            VecEnvWrapper.__init__(self, venv)
        self.render_mode = getattr(venv, "render_mode", None)
        self._closed = False
        in_workers = isinstance(venv.unwrapped, SubprocVecEnv)
        can_tell = not in_workers or spec_can_be_sent(lambda *asked: venv.env_method(*asked, indices=0)[0])
        spec = _asked(venv.get_attr, "spec") if can_tell else None
        name = "" if spec else _asked(venv.env_method, "__str__")
        metadata = _asked(venv.get_attr, "metadata") or getattr(venv.unwrapped, "metadata", None)
        description = EnvDescription.create(
            venv.observation_space,
            venv.action_space,
            n_envs=venv.num_envs,
            spec=spec,
            name=shown_name(name) if name else type(venv.unwrapped).__name__,
            metadata=metadata,
            render_mode=self.render_mode,
        )
        self._start(settings, description)
        self._intake = Intake(description.env_id, venv.num_envs, vector=True)
        self._batched = batch_space(venv.observation_space, venv.num_envs)
        self._actions = batch_space(venv.action_space, venv.num_envs)

    def reset(self) -> Any:
        """Starts episodes; the unfinished segments of the last ones are dropped."""
        system = self.system
        system.check_open()
        with system.unbroken():
            with self._intake.calling("reset"):
                observations = self.venv.reset()
            each = one_by_one(system.observations, self._batched, observations)
            checked = system.checked(each)
            system.collection.forget()
            system.observe(checked, each)
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Sends the actions to the environments."""
        system = self.system
        system.check_open()
        encoded = system.actions.encode(one_by_one(system.actions, self._actions, actions))
        with system.unbroken():
            system.begin_step(encoded, self.venv.get_images)
            self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Waits for the step; the rewards are the predicted ones if there are any."""
        system = self.system
        valid = np.ones(self.num_envs, np.bool_)  # an environment that ends an episode begins the next in the same step
        with system.unbroken():
            with self._intake.calling("step"):
                observations, own, dones, infos = self.venv.step_wait()
            system.left()
            rewards, done = self._intake.rewards(own), self._intake.done(dones)
            each = one_by_one(system.observations, self._batched, observations)
            checked = system.checked(each)
            predicted = system.end_step(rewards, done, valid)
            system.observe(checked, each)
        infos = with_rewards(infos, self.num_envs, rewards, predicted)
        if predicted is not None and system.predicted.replace_true:
            own = predicted
        return observations, own, dones, infos

    def close(self) -> None:
        """Ends the processes and the environments; may be called twice."""
        self.system.close()
        if not self._closed:
            self._closed = True
            self.venv.close()


def _asked(ask: Callable[..., Any], name: str) -> Any:
    """Returns the first environment's answer; None if the environments cannot be asked one by one."""
    try:
        return ask(name, indices=0)[0]
    except Exception:  # SuperSuit's have no `get_attr`, others no `indices`, and the answer only helps to name them
        return None
