"""Environments: facts about each id (`env_info`) and many of them at once (`make_vec_env`)."""

from dataclasses import replace

import gymnasium
import numpy as np
from numpy.typing import NDArray

from .atari import AtariPreferenceVecEnv
from .bodies import TASKS
from .checking import check_env
from .generic import GymnasiumPreferenceVecEnv, build_env
from .moving_dot import MovingDotVectorEnv
from .mujoco import GymnasiumBodiesVecEnv, TaskVecEnv, draw
from .registry import MOVING_DOT_ID, EnvError, atari_kwargs, find_spec, is_atari, is_body, with_key
from .table import EnvInfo, env_info
from .tasks import task_of
from .vector import PreferenceVecEnv

__all__ = [
    "EnvError",
    "EnvInfo",
    "MovingDotVectorEnv",
    "PreferenceVecEnv",
    "check_env",
    "draw_states",
    "env_info",
    "make_env",
    "make_vec_env",
    "task_of",
    "with_key",
]


def make_vec_env(
    env_id: str,
    n_envs: int,
    seed: int,
    n_watched: int = 0,
    n_threads: int = 0,
    in_process: bool = False,
    whole_games: bool = False,
    all_frames: bool | None = None,
) -> PreferenceVecEnv:
    """Makes `n_envs` environments; people can watch the first `n_watched`.

    `n_threads` is the number of threads that Atari's emulators share (0: ale-py's choice). With `in_process` no
    environment has a worker process of its own, which suits environments that are seldom used. With `whole_games`
    Atari's games go on to their end even if training cuts them (Enduro). `all_frames` is whether the networks see all
    frames of an agent step of Atari's, not only the last two; by default the game decides (`EnvInfo.all_frames`).
    Raises EnvError for an id that cannot be used or watched.
    """
    info = env_info(env_id)
    if env_id == MOVING_DOT_ID:
        return MovingDotVectorEnv(n_envs, seed, n_watched)
    if info.env_id in TASKS:
        return TaskVecEnv(info, n_envs, seed, n_watched)
    if is_atari(find_spec(env_id)):
        if whole_games:
            info = replace(info, max_episode_frames=atari_kwargs(find_spec(env_id))["max_num_frames_per_episode"])
        if all_frames is not None:
            info = replace(info, all_frames=all_frames)
        return AtariPreferenceVecEnv(info, n_envs, seed, n_watched, n_threads)
    if is_body(find_spec(env_id)):
        return GymnasiumBodiesVecEnv(info, n_envs, seed, n_watched)
    return GymnasiumPreferenceVecEnv(info, n_envs, seed, n_watched, in_process)


def make_env(env_id: str) -> gymnasium.Env:
    """Makes one environment with the preprocessing of `make_vec_env`.

    Raises EnvError for Atari's games and for rl-teacher's tasks.
    """
    info = env_info(env_id)
    if info.env_id in TASKS:
        raise EnvError(f"{env_id} is stepped with others of its kind: use make_vec_env with n_envs=1.")
    spec = find_spec(env_id)
    if is_atari(spec):
        raise EnvError(f"{env_id} is played by ale-py's vector environment: use make_vec_env with n_envs=1.")
    env = build_env(spec, info, watched=False)
    if env_id == MOVING_DOT_ID:
        # The original counts each agent step as +1, 0 or -1, like a clipped Atari reward.
        env = gymnasium.wrappers.TransformReward(env, lambda reward: float(np.sign(float(reward))))
    return env


def draw_states(env_id: str, states: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Returns pictures (T, H, W, 3) of a body of MuJoCo in these states (T, state_size).

    Raises EnvError if nothing can be drawn here, or the states are not of this body.
    """
    return draw(env_info(env_id), states)
