"""The wrapper for Stable-Baselines3's vector environments."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space, iterate
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from drlhp.wrapper.env import PREDICTED_REWARD, TRUE_REWARD, Preferences
from drlhp.wrapper.settings import Settings
from drlhp.wrapper.system import PreferenceSystem, shown_name, spec_can_be_sent


class HumanPreferencesSB3VecEnv(Preferences, VecEnvWrapper):
    """Stable-Baselines3's environments whose reward is learned from preferences.

    Arguments after `venv` are those of `drlhp.Settings`. Each `info` has `true_reward`, and `predicted_reward` as soon
    as there is one. A VecMonitor around it counts the rewards that the agent learns from, one inside it the true ones.

    Raises UserError, with one sentence that says what would work; ChildError if a process beside this one died.
    """

    def __init__(self, venv: VecEnv, *args: Any, **kwargs: Any) -> None:
        self._check_kind(venv, VecEnv)
        VecEnvWrapper.__init__(self, venv)
        self._closed = False
        in_workers = isinstance(venv.unwrapped, SubprocVecEnv)
        can_tell = not in_workers or spec_can_be_sent(lambda *asked: venv.env_method(*asked, indices=0)[0])
        spec = venv.get_attr("spec", 0)[0] if can_tell else None
        metadata = venv.get_attr("metadata", 0)[0] or {}
        self._start(
            PreferenceSystem(
                Settings(*args, **kwargs),
                venv.observation_space,
                venv.action_space,
                n_envs=venv.num_envs,
                env_id=spec.id if spec else shown_name(venv.env_method("__str__", indices=0)[0]),
                fps=metadata.get("render_fps"),
                max_episode_steps=spec.max_episode_steps if spec else None,
                can_render=venv.render_mode == "rgb_array",
            )
        )
        self._batched = batch_space(venv.observation_space, venv.num_envs)
        # The observations on which the next actions are chosen, where they are needed:
        self._before: np.ndarray | None = None  # encoded
        self._shown: Any = None  # for people

    def reset(self) -> Any:
        """Starts episodes; what was not finished of the last ones is in no segment."""
        self.system.check_open()
        observations = self.venv.reset()
        self.system.forget()
        self._keep(observations)
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Sends the actions."""
        self.system.check_open()
        self.system.begin_step(self._before, self.system.actions.encode(actions), self._views())
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Waits for the step; the rewards are the predicted ones if there are any."""
        observations, rewards, dones, infos = self.venv.step_wait()
        valid = np.ones(self.num_envs, np.bool_)  # where an episode ended, the next one has begun in the same step
        predicted = self.system.end_step(rewards, dones, valid)
        self._keep(observations)
        infos = [dict(info) for info in infos]  # there are environments that give the same one for all
        for i, info in enumerate(infos):
            info[TRUE_REWARD] = float(rewards[i])
            if predicted is not None:
                info[PREDICTED_REWARD] = float(predicted[i])
        if predicted is not None and not self.system.forced_true:
            rewards = predicted
        return observations, rewards, dones, infos

    def _keep(self, observations: Any) -> None:
        encoder = self.system.observations
        each = observations if encoder.takes_arrays else list(iterate(self._batched, observations))
        self._before, self._shown = self.system.kept(each), self.system.shown(each)

    def _views(self) -> np.ndarray | None:
        if self._before is None or not self.system.n_watched or not self.system.collecting:
            return None
        if self.venv.render_mode == "rgb_array":
            frames = self.system.drawn(self.venv.get_images)
            return self.system.pictures([frames[i] for i in range(self.system.n_watched)])
        return self.system.views(self._shown)

    def close(self) -> None:
        """Ends the processes and the environments; may be called twice."""
        self.system.close()
        if not self._closed:
            self._closed = True
            self.venv.close()
