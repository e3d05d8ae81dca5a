"""Preferences in place of a reward function, around any Gymnasium environment, for any RL code.

    from drlhp import HumanPreferencesEnvWrapper

    env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), segment_length=25)

Segments of what the agent does are shown to a person, or judged by the environment's own reward; a reward predictor
learns from the answers (Christiano et al. 2017, arXiv 1706.03741); its reward takes the place of the environment's.
See docs/wrapper.md for what runs where, and `Settings` for every argument.
"""

from __future__ import annotations

import importlib.util
import inspect
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from drlhp.errors import ChildError, PrefDBError, SpaceError, UserError
from drlhp.runtime.checkpoint import CheckpointError
from drlhp.wrapper.settings import Settings
from drlhp.wrapper.system import PreferenceSystem, shown_name, spec_can_be_sent
from reward_predictor import PredictorConfig

if TYPE_CHECKING:
    from drlhp.wrapper.sb3 import HumanPreferencesSB3VecEnv

__all__ = [
    "CheckpointError",
    "ChildError",
    "HumanPreferencesEnvWrapper",
    "HumanPreferencesVectorEnv",
    "PredictorConfig",
    "PrefDBError",
    "Settings",
    "SpaceError",
    "UserError",
]
if importlib.util.find_spec("stable_baselines3"):  # else an import of all names would fail
    __all__ += ["HumanPreferencesSB3VecEnv"]

FOR_EACH = (
    "HumanPreferencesEnvWrapper takes a gymnasium.Env, HumanPreferencesVectorEnv a gymnasium.vector.VectorEnv, "
    "HumanPreferencesSB3VecEnv a VecEnv of Stable-Baselines3"
)
TRUE_REWARD, PREDICTED_REWARD = "true_reward", "predicted_reward"  # keys of info


def __getattr__(name: str) -> Any:
    """The adapter for Stable-Baselines3, which is imported only where it is used."""
    if name == "HumanPreferencesSB3VecEnv":
        from drlhp.wrapper.sb3 import HumanPreferencesSB3VecEnv

        return HumanPreferencesSB3VecEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Counter:
    """A number that another process writes."""

    def __init__(self, shared: Any) -> None:
        self._shared = shared

    @property
    def value(self) -> int:
        """What it is now."""
        return 0 if self._shared is None else int(self._shared.value)


class Preferences:
    """What the wrappers have in common: the methods that are about preferences."""

    system: PreferenceSystem

    def _check_kind(self, env: Any, kind: type) -> None:
        """Raises UserError if the environment is for another wrapper, or none."""
        if not isinstance(env, kind):
            raise UserError(f"{type(self).__name__} cannot wrap {env!r}: {FOR_EACH}.")

    def _start(self, system: PreferenceSystem) -> None:
        self.system = system
        channels = system.channels
        self.pref_db_size = Counter(channels and channels.n_labels)
        self.reward_training_steps = Counter(channels and channels.trained_batches)
        weakref.finalize(self, system.close)  # a wrapper that is dropped without `close` leaves nothing behind

    @property
    def using_reward_from_predictor(self) -> bool:
        """Whether `step` returns predicted rewards."""
        return self.system.using_predicted

    @property
    def segments_collected(self) -> int:
        """Segments cut so far."""
        return self.system.cutter.n_cut

    @property
    def run_dir(self) -> Path | None:
        """Folder of this wrapper in log_dir: preferences, checkpoints, curves, logs; None where nothing is stored."""
        return self.system.run_dir

    def save_prefs(self) -> Path | None:
        """The file of all preferences, each written as it is given. Pass it, or its folder, as prefs_dir."""
        return self.system.save_prefs()

    def save_reward_predictor(self) -> Path | None:
        """Writes a checkpoint now, which stays, and returns it. Pass it as pretrained_reward_predictor_dir.

        Or pass its folder, for the newest one.
        """
        return self.system.save_reward_predictor()

    def start_segment_collection(self) -> None:
        """Cuts segments from now on, as it does at first."""
        self.system.collect_segments(True)

    def stop_segment_collection(self) -> None:
        """Cuts no segments until `start_segment_collection`."""
        self.system.collect_segments(False)

    def switch_to_true_reward(self) -> None:
        """Returns the environment's own reward, for an evaluation; warns where that changes nothing."""
        self.system.use_true_reward(True)

    def switch_to_predicted_reward(self) -> None:
        """Returns the predicted reward again; warns where that changes nothing."""
        self.system.use_true_reward(False)


class HumanPreferencesEnvWrapper(
    Preferences, gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs
):
    """One environment whose reward is learned from preferences; arguments after `env` are those of `Settings`.

    Until the predictor is trained (`using_reward_from_predictor`), `step` returns the environment's own reward.
    `info` has both: `true_reward`, and `predicted_reward` as soon as there is one. A `step` after the end of an episode
    is one in which the environment resets itself (gymnasium.wrappers.Autoreset): its reward is 0.

    Raises UserError, with one sentence that says what would work; ChildError if a process beside this one died.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *args: Any, **kwargs: Any) -> None:
        self._check_kind(env, gymnasium.Env)
        settings = Settings(*args, **kwargs)
        gymnasium.utils.RecordConstructorArgs.__init__(self, _disable_deepcopy=True, **vars(settings))
        gymnasium.Wrapper.__init__(self, env)
        spec = env.spec
        self._start(
            PreferenceSystem(
                settings,
                env.observation_space,
                env.action_space,
                n_envs=1,
                env_id=spec.id if spec else type(env.unwrapped).__name__,
                fps=env.metadata.get("render_fps"),
                max_episode_steps=spec.max_episode_steps if spec else None,
                can_render=env.render_mode == "rgb_array",
            )
        )
        # The observation on which the next action is chosen, where it is needed:
        self._before: np.ndarray | None = None  # encoded
        self._shown: Any = None  # for people
        self._resetting = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; what was not finished of the last one is in no segment."""
        self.system.check_open()
        observation, info = self.env.reset(seed=seed, options=options)
        self.system.forget()
        self._resetting = False
        self._keep(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps, with the predicted reward if there is one."""
        self.system.check_open()
        encoder = self.system.actions
        encoded = encoder.encode(np.asarray([action]) if encoder.takes_arrays else [action])
        self.system.begin_step(self._before, encoded, self._views())
        observation, reward, terminated, truncated, info = self.env.step(action)
        true = np.array(reward, np.float64).reshape(1)  # some return an array of one
        done, valid = np.array([terminated or truncated]), np.array([not self._resetting])
        predicted = self.system.end_step(true, done, valid)
        self._resetting = bool(done[0])
        self._keep(observation)
        info = {**info, TRUE_REWARD: float(true[0])}
        if predicted is not None:
            info[PREDICTED_REWARD] = float(predicted[0])
            if not self.system.forced_true:
                reward = float(predicted[0])
        return observation, reward, terminated, truncated, info  # type: ignore[return-value]

    def _keep(self, observation: Any) -> None:
        each = np.asarray(observation)[None] if self.system.observations.takes_arrays else [observation]
        self._before, self._shown = self.system.kept(each), self.system.shown(each)

    def _views(self) -> np.ndarray | None:
        if self._before is None or not self.system.n_watched or not self.system.collecting:
            return None
        if self.env.render_mode == "rgb_array":
            return self.system.pictures([self.system.drawn(self.env.render)])
        return self.system.views(self._shown)

    def close(self) -> None:
        """Ends the processes and the environment; may be called twice."""
        self.system.close()
        self.env.close()


class HumanPreferencesVectorEnv(Preferences, VectorWrapper):
    """Many environments at once, with one predictor; arguments after `env` are those of `Settings`.

    `info` has arrays `true_reward` and, as soon as there is one, `predicted_reward`. Where the environments reset in a
    step of their own (Gymnasium's AutoresetMode.NEXT_STEP), that step's reward is 0.

    Raises UserError, with one sentence that says what would work; ChildError if a process beside this one died.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *args: Any, **kwargs: Any) -> None:
        self._check_kind(env, VectorEnv)
        VectorWrapper.__init__(self, env)
        spec, one = _spec_and_name(env)
        self._start(
            PreferenceSystem(
                Settings(*args, **kwargs),
                env.single_observation_space,
                env.single_action_space,
                n_envs=env.num_envs,
                env_id=spec.id if spec else one,
                fps=env.metadata.get("render_fps"),
                max_episode_steps=spec.max_episode_steps if spec else None,
                can_render=env.render_mode == "rgb_array",
            )
        )
        # Of itself first: before Gymnasium 1.4 those of a class share their metadata, whose mode is the newest one's.
        mode = getattr(env.unwrapped, "autoreset_mode", env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._next_step = mode == AutoresetMode.NEXT_STEP
        self._resetting = np.zeros(env.num_envs, np.bool_)
        # The observations on which the next actions are chosen, where they are needed:
        self._before: np.ndarray | None = None  # encoded
        self._shown: Any = None  # for people

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts episodes; what was not finished of the last ones is in no segment."""
        self.system.check_open()
        # With AutoresetMode.DISABLED only some may be reset. Asked first: Gymnasium takes the mask out of the options.
        mask = np.array((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        observations, info = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        self.system.forget(mask)
        self._resetting[mask] = False
        self._keep(observations)
        return observations, info

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Steps all of them, with the predicted rewards if there are any."""
        self.system.check_open()
        encoder = self.system.actions
        encoded = encoder.encode(actions if encoder.takes_arrays else list(iterate(self.env.action_space, actions)))
        self.system.begin_step(self._before, encoded, self._views())
        observations, rewards, terminated, truncated, info = self.env.step(actions)
        done, valid = terminated | truncated, ~self._resetting
        predicted = self.system.end_step(rewards, done, valid)
        self._resetting = done & self._next_step
        self._keep(observations)
        everywhere = np.ones(self.num_envs, np.bool_)
        # Copies: what is returned as reward may be changed in place.
        info = {**info, TRUE_REWARD: rewards.copy(), f"_{TRUE_REWARD}": everywhere}
        if predicted is not None:
            info |= {PREDICTED_REWARD: predicted.copy(), f"_{PREDICTED_REWARD}": everywhere}
            if not self.system.forced_true:
                rewards = predicted
        return observations, rewards, terminated, truncated, info

    def _keep(self, observations: Any) -> None:
        arrays = self.system.observations.takes_arrays
        each = observations if arrays else list(iterate(self.env.observation_space, observations))
        self._before, self._shown = self.system.kept(each), self.system.shown(each)

    def _views(self) -> np.ndarray | None:
        if self._before is None or not self.system.n_watched or not self.system.collecting:
            return None
        if self.env.render_mode == "rgb_array":
            frames = self.system.drawn(self.env.render)
            return self.system.pictures([frames[i] for i in range(self.system.n_watched)])
        return self.system.views(self._shown)

    def close(self, **kwargs: Any) -> None:
        """Ends the processes and the environments; may be called twice."""
        self.system.close()
        if not self.env.closed:
            self.env.close(**kwargs)


def _spec_and_name(env: VectorEnv[Any, Any, Any]) -> tuple[Any, str]:
    """What Gymnasium knows of the environments, or what they are called where it knows nothing."""
    inside, spec = env.unwrapped, env.spec
    if not isinstance(inside, (AsyncVectorEnv, SyncVectorEnv)):
        return spec, type(inside).__name__
    if isinstance(inside, SyncVectorEnv) or spec_can_be_sent(lambda *asked: inside.call(*asked)[0]):
        spec = inside.get_attr("spec")[0] or spec
    return spec, "" if spec else shown_name(inside.call("__str__")[0])


def _with_settings(constructor: Any) -> None:
    """Shows the names and defaults of `Settings` in `help` and editors, where Python sees only `*args, **kwargs`."""
    own = list(inspect.signature(constructor).parameters.values())[:2]
    theirs = inspect.signature(Settings).parameters.values()
    constructor.__signature__ = inspect.Signature([*own, *theirs])


_with_settings(HumanPreferencesEnvWrapper.__init__)
_with_settings(HumanPreferencesVectorEnv.__init__)
