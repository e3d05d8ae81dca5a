"""Any other Gymnasium environment, in Gymnasium's worker processes."""

import multiprocessing.connection
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from drlhp.errors import UserError, reason_of
from drlhp.runtime.pulse import doing

from .observations import Reading, reading_of
from .preprocessing import PixelPreprocessing
from .registry import EnvError, find_spec, split_key
from .table import EnvInfo
from .vector import PreferenceVecEnv
from .workers import Workers

FRAME_KEY = "colour_frame"
LOST_SECONDS = 10.0  # ample time for a process to end after its pipe has


class Read(gymnasium.ObservationWrapper):
    """Gives observations as they are read: a screen as bytes (H, W) or (H, W, 3), all else as a float32 vector (D,)."""

    def __init__(self, env: gymnasium.Env, reading: Reading) -> None:
        super().__init__(env)
        self._read = reading.picture if reading.kind == "pixels" else reading.vector
        if reading.kind == "vector":
            self.observation_space = Box(-np.inf, np.inf, (reading.size,), np.float32)

    def observation(self, observation: Any) -> NDArray[Any]:
        """Returns one observation as it is read."""
        return self._read(observation)


class FrameInInfo(gymnasium.Wrapper):
    """Puts each observation's rendered frame into its info, which reaches the main process.

    The frame stands in a tuple, because Gymnasium would stack bare frames, and those may differ in size.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets and renders."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, {**info, FRAME_KEY: (self.env.render(),)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps and renders."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {**info, FRAME_KEY: (self.env.render(),)}


def build_env(spec: EnvSpec, info: EnvInfo, watched: bool) -> gymnasium.Env:
    """Makes one environment for a worker; continuous actions are clipped to their bounds."""
    options: dict[str, Any] = {"render_mode": "rgb_array"} if watched else {}  # others need not support rendering
    env = gymnasium.make(spec, **options, disable_env_checker=True)
    if info.action_dim is not None:
        env = gymnasium.wrappers.ClipAction(env)
    env = Read(env, reading_of(info.env_id, env.observation_space, split_key(info.env_id)[1]))
    if info.kind == "pixels":
        env = PixelPreprocessing(env, info)
    return FrameInInfo(env) if watched else env


def check_can_be_watched(spec: EnvSpec, info: EnvInfo) -> None:
    """Draws one frame in this process, which can explain a failure; raises EnvError then."""
    try:
        with build_env(spec, info, watched=True) as env:
            (frame,) = env.reset(seed=0)[1][FRAME_KEY]
    except Exception as error:  # a renderer may raise anything
        raise EnvError(f"{info.env_id} cannot draw frames for people to watch: {reason_of(error)}.") from error
    if not (isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.shape[2:] == (3,)):
        raise EnvError(f"{info.env_id} cannot be watched: its rgb_array frames must be (H, W, 3) uint8.")


class GymnasiumPreferenceVecEnv(PreferenceVecEnv):
    """Any Gymnasium id, one worker process each (in this process when there is only one, or with `in_process`).

    A worker's exception is raised here too, and EnvError if a worker was killed. Only watched environments render.
    """

    def __init__(self, info: EnvInfo, n_envs: int, seed: int, n_watched: int = 0, in_process: bool = False) -> None:
        super().__init__(info, n_envs, seed, n_watched)
        spec = find_spec(info.env_id)  # for the workers, because the id may be registered in this process only
        if n_watched:
            check_can_be_watched(spec, info)
        makers = [partial(build_env, spec, info, i < n_watched) for i in range(n_envs)]
        self._envs: Workers | SyncVectorEnv
        if n_envs == 1 or in_process:
            self._envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
        else:
            try:
                with doing(f"the start of {n_envs} processes of {info.env_id}", foreign=True):
                    self._envs = Workers(makers)
            except (EOFError, ConnectionError) as error:
                raise EnvError(
                    f"an environment's process of {info.env_id} ended while it was started; if memory was short, go on "
                    "with fewer --n_envs."
                ) from error
        self._frames = np.zeros((0, 1, 1, 3), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Starts an episode in every environment."""
        with self._no_worker_lost("a reset"):
            obs, info = self._envs.reset(seed=self._seed_for_reset(seed), options=options)
        return obs, self._keep_frames(info)

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one agent step in every environment."""
        with self._no_worker_lost("a step"):
            obs, rewards, terminated, truncated, info = self._envs.step(actions)
        return obs, rewards.astype(np.float32), terminated, truncated, self._keep_frames(info)

    def watch(self) -> NDArray[np.uint8]:
        """Returns the current frames as rendered, (n_watched, H, W, 3)."""
        return self._frames

    def close_extras(self, **kwargs: Any) -> None:
        """Stops the workers."""
        with self._no_worker_lost("the end"):
            self._envs.close(**kwargs)

    @contextmanager
    def _no_worker_lost(self, what: str) -> Iterator[None]:
        """Ends the other workers and raises EnvError if the body, which does this, finds that a worker has died."""
        try:
            with doing(f"{what} of {self.info.env_id}", foreign=True):
                yield
        except (EOFError, ConnectionError) as error:
            workers = getattr(self._envs, "processes", [])
            ended = multiprocessing.connection.wait([worker.sentinel for worker in workers], LOST_SECONDS)
            for worker in workers:
                if worker.sentinel in ended:
                    worker.join()
            code = next((worker.exitcode for worker in workers if worker.exitcode), 0)
            if not workers or getattr(self._envs, "has_failed", False):
                self._say_fix(error, what)
                raise
            for worker in workers:
                worker.kill()
            self._envs.closed = True  # closing would wait for the dead worker forever
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
            raise EnvError(
                f"an environment's process of {self.info.env_id} {how}; if memory was short, go on with fewer --n_envs."
            ) from error
        except UserError:
            raise
        except Exception as error:  # an environment may raise anything
            self._say_fix(error, what)
            raise

    def _say_fix(self, error: Exception, what: str) -> None:
        """Notes at an environment's own error where it came from and what to do."""
        error.add_note(f"raised by {what} of {self.info.env_id}: fix the environment")

    def _keep_frames(self, info: dict[str, Any]) -> dict[str, Any]:
        if self.n_watched:
            frames = [frame for (frame,) in info.pop(FRAME_KEY)[: self.n_watched]]
            del info[f"_{FRAME_KEY}"]
            sizes = {frame.shape[:2] for frame in (*self._frames, *frames)}
            if len(sizes) > 1:
                raise EnvError(
                    f"{self.info.env_id} cannot be watched: its frames change their size (rows and columns "
                    f"{' and '.join(map(str, sorted(sizes)))}); let its render() keep to one."
                )
            self._frames = np.stack(frames)
        return info
