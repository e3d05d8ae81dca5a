"""Bodies in MuJoCo, stepped one after the other in this process: a step takes some 50 microseconds, a message as long.

Two kinds: rl-teacher's tasks (bodies.py), whose observations and rewards are computed for all of them at once, and
Gymnasium's own environments, as they are.
"""

from __future__ import annotations

import atexit
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from drlhp.errors import reason_of

from .bodies import TASKS, Moment
from .registry import EnvError, find_spec, make
from .table import EnvInfo
from .vector import PreferenceVecEnv

PICTURE_SIZE = 240  # side of what people see, pixels


class BodiesVecEnv(PreferenceVecEnv):
    """N bodies, each until its episode ends or its time is over; the subclasses say which bodies.

    Raises EnvError if people should watch some of them and nothing can be drawn here.
    """

    def __init__(self, info: EnvInfo, n_envs: int, seed: int, n_watched: int, horizon: int | None) -> None:
        super().__init__(info, n_envs, seed, n_watched)
        if n_watched:
            draw(info, np.zeros((1, info.state_size)))  # now, because this process can explain a failure
        self._horizon = 2**53 if horizon is None else horizon
        self._ages = np.zeros(n_envs, np.int64)  # steps of the running episodes
        self._done = np.zeros(n_envs, np.bool_)
        self._given_up = np.zeros(n_envs, np.bool_)  # episodes that end with the next step

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts an episode in every environment.

        `elapsed` in the options, (N,), is the share of each episode that counts as over already.
        """
        seed = self._seed_for_reset(seed)
        seeds = [None if seed is None else seed + i for i in range(self.num_envs)]
        observations = self._start(list(range(self.num_envs)), seeds)
        elapsed = np.asarray((options or {}).get("elapsed", 0.0))
        self._ages[:], self._done[:], self._given_up[:] = elapsed * self._horizon, False, False
        return observations, {}

    def step(
        self, actions: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one agent step in every environment, or starts an episode if its last one has ended."""
        ended = self._done
        observations, rewards, terminated = self._act(actions, ended)
        self._ages += 1
        if ended.any():
            at = np.flatnonzero(ended)
            observations[at] = self._start(at.tolist(), [None] * len(at))
            self._ages[at], rewards[at], terminated[at] = 0, 0.0, False
        truncated = (self._ages >= self._horizon) | self._given_up
        self._given_up[:] = False
        self._done = terminated | truncated
        return observations, rewards, terminated, truncated, {}

    def end_episodes(self, which: NDArray[np.bool_]) -> None:
        self._given_up = which & ~self._done

    def watch(self) -> NDArray[np.uint8]:
        """Draws and returns pictures of the first bodies, (n_watched, H, W, 3)."""
        return draw(self.info, self.states[: self.n_watched])

    def _start(self, which: list[int], seeds: list[int | None]) -> NDArray[np.float32]:
        """Starts episodes of some bodies, with a new random stream if there is a seed; returns observations."""
        raise NotImplementedError

    def _act(
        self, actions: NDArray[np.float32], resting: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
        """Moves all bodies except the resting ones.

        Returns:
            observations, rewards and whether the episode ended, of all bodies (N, ...).
        """
        raise NotImplementedError


class TaskVecEnv(BodiesVecEnv):
    """rl-teacher's tasks: one model, a simulation for each environment, arithmetic for all of them at once."""

    def __init__(self, info: EnvInfo, n_envs: int, seed: int, n_watched: int = 0) -> None:
        self._task = TASKS[info.env_id]
        super().__init__(info, n_envs, seed, n_watched, self._task.horizon)
        import mujoco

        body = make_body(self._task.gymnasium_id)
        self._model, self._frame_skip, self._seconds = body.model, body.frame_skip, body.dt
        self._data = [mujoco.MjData(self._model) for _ in range(n_envs)]
        # Views of each simulation's own memory, so that reading the state after a step is free.
        self._controls = [data.ctrl for data in self._data]
        self._parts = [[data.qpos, data.qvel, *self._task.senses(data)] for data in self._data]
        self._values = np.zeros((n_envs, sum(map(len, self._parts[0]))))
        self._generators = [seeding.np_random()[0] for _ in range(n_envs)]

    @property
    def states(self) -> NDArray[np.float32]:
        return self._values[:, : self.info.state_size].astype(np.float32)

    def _start(self, which: list[int], seeds: list[int | None]) -> NDArray[np.float32]:
        import mujoco

        for i, seed in zip(which, seeds, strict=True):
            if seed is not None:
                self._generators[i] = seeding.np_random(seed)[0]
            data = self._data[i]
            mujoco.mj_resetData(self._model, data)
            data.qpos[:], data.qvel[:] = self._task.start(self._generators[i], self._model.qpos0, self._model.nv)
            mujoco.mj_forward(self._model, data)
            np.concatenate(self._parts[i], out=self._values[i])
        return self._task.observe(self._moment(self._values[which])).astype(np.float32)

    def _act(
        self, actions: NDArray[np.float32], resting: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
        from mujoco import mj_rnePostConstraint, mj_step

        before, model, controls = self._moment(self._values.copy()), self._model, self.info.carried_out(actions)
        for i in np.flatnonzero(~resting).tolist():
            self._controls[i][:] = controls[i]
            mj_step(model, self._data[i], self._frame_skip)
            if self._task.feels_contacts:
                mj_rnePostConstraint(model, self._data[i])
            np.concatenate(self._parts[i], out=self._values[i])
        now = self._moment(self._values)
        rewards = self._task.reward(before, now, self._seconds).astype(np.float32)
        return self._task.observe(now).astype(np.float32), rewards, np.zeros(self.num_envs, np.bool_)

    def _moment(self, values: NDArray[np.float64]) -> Moment:
        return Moment(values, self._model.nq, self._model.nv)


class GymnasiumBodiesVecEnv(BodiesVecEnv):
    """Gymnasium's own MuJoCo environments with their own rewards, without the wrappers that cost more than a step."""

    def __init__(self, info: EnvInfo, n_envs: int, seed: int, n_watched: int = 0) -> None:
        spec = find_spec(info.env_id)
        super().__init__(info, n_envs, seed, n_watched, spec.max_episode_steps)
        self._envs = [make_body(info.env_id) for _ in range(n_envs)]
        self._observations = np.zeros((n_envs, *info.observation_shape), np.float32)

    @property
    def states(self) -> NDArray[np.float32]:
        return np.stack([env.state_vector() for env in self._envs]).astype(np.float32)

    def _start(self, which: list[int], seeds: list[int | None]) -> NDArray[np.float32]:
        for i, seed in zip(which, seeds, strict=True):
            self._observations[i] = self._envs[i].reset(seed=seed)[0]
        return self._observations[which]

    def _act(
        self, actions: NDArray[np.float32], resting: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
        rewards, terminated = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.bool_)
        actions = self.info.carried_out(actions)
        for i in np.flatnonzero(~resting).tolist():
            self._observations[i], rewards[i], terminated[i], _, _ = self._envs[i].step(actions[i])
        return self._observations, rewards, terminated


def make_body(gymnasium_id: str, **options: Any) -> Any:
    """Makes a Gymnasium MuJoCo environment without wrappers.

    Raises EnvError if MuJoCo is missing, or the environment cannot be made.
    """
    return make(find_spec(gymnasium_id), disable_env_checker=True, **options).unwrapped


def draw(info: EnvInfo, states: NDArray[Any]) -> NDArray[np.uint8]:
    """Returns pictures (T, H, W, 3) of a body in these states (T, state_size).

    One thread of its own does all the drawing, because a renderer's context belongs to one thread.
    Raises EnvError if states are of another body, or nothing can be drawn here.
    """
    if states.ndim != 2 or states.shape[1] != info.state_size:
        raise EnvError(
            f"{info.env_id} is drawn from states of {info.state_size} numbers, not of {states.shape[-1]}: they are "
            "another body's, or another version's; record the segment anew."
        )
    return _artist().submit(_draw, info.env_id, states).result()


@cache
def _artist() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "renderer")


@cache
def _canvas(gymnasium_id: str) -> Any:
    """Makes a body for drawing, without the effects that take three quarters of the time on a CPU."""
    from mujoco import mjtRndFlag

    size = {"width": PICTURE_SIZE, "height": PICTURE_SIZE}
    # Each model that moves about has a camera of this name that follows it; Gymnasium's default camera stands still.
    body = make_body(gymnasium_id, render_mode="rgb_array", camera_name="track", **size)
    body.model.vis.quality.offsamples = 0
    body.reset(seed=0)  # a body without such a camera is seen from where it lies now
    body.render()  # creates the renderer
    atexit.register(body.close)  # runs before MuJoCo's own hook, which destroys the context that this needs
    flags = body.mujoco_renderer.viewer.scn.flags
    for flag in (mjtRndFlag.mjRND_SHADOW, mjtRndFlag.mjRND_REFLECTION, mjtRndFlag.mjRND_HAZE, mjtRndFlag.mjRND_SKYBOX):
        flags[flag] = 0
    return body


def _lay_floor_under(body: Any) -> None:
    """Moves the floor along with the body by whole patterns.

    The floor ends after 20 or 40 metres, and without one nobody sees the speed.
    """
    from mujoco import mjtGeom

    model, data = body.model, body.data
    for plane in np.flatnonzero(model.geom_type == mjtGeom.mjGEOM_PLANE):
        material, size = model.geom_matid[plane], model.geom_size[plane, :2]
        if material >= 0 and size.all():  # a floor of size 0 is infinite
            pattern = 2 * size / model.mat_texrepeat[material]
            home = model.geom_pos[plane, :2]
            data.geom_xpos[plane, :2] = home + ((data.xpos[1, :2] - home) / pattern).round() * pattern


def _draw(env_id: str, states: NDArray[Any]) -> NDArray[np.uint8]:
    frames = []
    try:
        with warnings.catch_warnings():  # GLFW's warnings repeat the error below
            warnings.simplefilter("ignore")
            body = _canvas(TASKS[env_id].gymnasium_id if env_id in TASKS else env_id)
        body.mujoco_renderer.viewer.make_context_current()  # another body's, or a user's, may have been drawn since
        for state in states:
            body.set_state(state[: body.model.nq], state[body.model.nq :])
            _lay_floor_under(body)
            frames.append(body.render())
    except Exception as error:  # a renderer may raise anything
        raise EnvError(
            f"{env_id} cannot be drawn ({reason_of(error)}): install a renderer that needs no display (Debian: apt-get "
            "install libegl1), and unset MUJOCO_GL or let it name one: egl, osmesa or, with a display, glfw."
        ) from error
    return np.stack(frames)
