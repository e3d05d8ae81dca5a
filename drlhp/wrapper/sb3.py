"""The wrapper for Stable-Baselines3's vector environments."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from drlhp.wrapper.base import PREDICTED_REWARD, TRUE_REWARD, PreferenceWrapper
from drlhp.wrapper.description import EnvDescription
from drlhp.wrapper.env import shown_name, spec_can_be_sent
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
        VecEnvWrapper.__init__(self, venv)
        self._closed = False
        in_workers = isinstance(venv.unwrapped, SubprocVecEnv)
        can_tell = not in_workers or spec_can_be_sent(lambda *asked: venv.env_method(*asked, indices=0)[0])
        spec = venv.get_attr("spec", 0)[0] if can_tell else None
        description = EnvDescription.create(
            venv.observation_space,
            venv.action_space,
            n_envs=venv.num_envs,
            spec=spec,
            name="" if spec else shown_name(venv.env_method("__str__", indices=0)[0]),
            metadata=venv.get_attr("metadata", 0)[0] or {},
            render_mode=venv.render_mode,
        )
        self._start(Settings(*args, **kwargs), description)
        self._batched = batch_space(venv.observation_space, venv.num_envs)

    def reset(self) -> Any:
        """Starts episodes; the unfinished segments of the last ones are dropped."""
        self.system.check_open()
        observations = self.venv.reset()
        self.system.collection.forget()
        self._observe(observations)
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Sends the actions to the environments."""
        self.system.check_open()
        self.system.begin_step(self.system.actions.encode(actions), self.venv.get_images)
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Waits for the step; the rewards are the predicted ones if there are any."""
        observations, rewards, dones, infos = self.venv.step_wait()
        valid = np.ones(self.num_envs, np.bool_)  # an environment that ends an episode begins the next in the same step
        predicted = self.system.end_step(rewards, dones, valid)
        self._observe(observations)
        infos = [dict(info) for info in infos]  # some environments return the same info for all
        for i, info in enumerate(infos):
            info[TRUE_REWARD] = float(rewards[i])
            if predicted is not None:
                info[PREDICTED_REWARD] = float(predicted[i])
        if predicted is not None and self.system.predicted.replace_true:
            rewards = predicted
        return observations, rewards, dones, infos

    def _observe(self, observations: Any) -> None:
        self.system.observe(one_by_one(self.system.observations, self._batched, observations))

    def close(self) -> None:
        """Ends the processes and the environments; may be called twice."""
        self.system.close()
        if not self._closed:
            self._closed = True
            self.venv.close()
