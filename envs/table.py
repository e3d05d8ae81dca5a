"""Facts about each environment, looked up by its id."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import ale_py
import ale_py.roms
import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from .bodies import TASKS, Task, task_id
from .observations import reading_of
from .registry import MOVING_DOT_ID, EnvError, atari_kwargs, find_spec, is_atari, is_body, make, split_key
from .tuned import BODY_DEFAULTS, PIXEL_DEFAULTS, TUNED, TUNED_GAMES, VECTOR_DEFAULTS, Kind

STACK = 4
PICTURE = 84  # side of the network's picture, pixels
PIXEL_SHAPE = (STACK, PICTURE, PICTURE)
SEGMENT_LENGTH = 25  # agent steps (paper, appendix A.2)
# Off Atari a segment lasts 1.5 seconds, which was 15 to 60 agent steps depending on the task (paper, appendix A.1).
SEGMENT_SECONDS = 1.5
SEGMENT_BOUNDS = 15, 60
BODY_FPS = SEGMENT_BOUNDS[1] / SEGMENT_SECONDS  # people see faster bodies in slow motion
SCREEN_HZ = 60
DEFAULT_FPS = 30.0
ATARI_FRAME_SKIP = 4
ATARI_SCREEN = (210, 160)  # rows, columns
# (top, bottom, left, right) by ROM. The paper blacks out the score, BeamRider's count of enemy ships and
# Enduro's speedometer (appendix A.2), because they would show the predictor the reward. Two other things are in the
# score's place and so hidden too: Space Invaders' mothership and the top of Qbert's highest jumps.
_BLANK_AREAS: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "beam_rider": ((8, 20, 56, 112), (32, 40, 16, 36)),
    "breakout": ((5, 15, 36, 80),),
    "enduro": ((160, 210, 0, 160),),
    "pong": ((0, 22, 0, 160),),
    "qbert": ((5, 15, 32, 72),),
    "seaquest": ((7, 20, 56, 108),),
    "space_invaders": ((8, 22, 0, 160),),
}
# ROMs of which the networks see all four frames of a step, because in the last two alone objects are hidden in at least
# 1 % of moments (`benchmarks.learning.flicker.chosen` makes this list of results/flicker.json). The paper's games are
# seen as in the paper, also Seaquest (3 %), so that results can be compared.
ALL_FRAMES = frozenset(
    {
        *("bank_heist", "berzerk", "chopper_command", "crazy_climber", "double_dunk", "mr_do", "othello", "pacman"),
        *("robotank", "wizard_of_wor", "word_zapper", "yars_revenge"),
    }
)
# Enduro's weather changes after some 3,000 frames; its episodes end before that.
_MAX_EPISODE_FRAMES: dict[str, int] = {"enduro": 3000}

# The untrained agent's episodes last some 22 steps here, and an episode shorter than half a clip gives no clip.
_SEGMENT_LENGTHS: dict[str, int] = {"CartPole-v0": 25, "CartPole-v1": 25}

Bounds = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class EnvInfo:
    """Facts about one environment id; times are in agent steps unless a name says frames."""

    env_id: str
    kind: Kind
    observation_shape: tuple[int, ...]  # pixels: (4, 84, 84) uint8; vector: (D,) float32
    n_actions: int | None  # None when actions are continuous
    action_dim: int | None  # None when actions are discrete
    segment_length: int
    fps: float  # agent steps per second that people see: real time, or slow motion for bodies of MuJoCo
    frame_skip: int
    blank_areas: tuple[tuple[int, int, int, int], ...]  # (top, bottom, left, right), screen pixels
    max_episode_frames: int | None
    action_names: tuple[str, ...]  # by action number; empty when actions are continuous
    tuned: Mapping[str, object]  # by flag name
    state_size: int = 0  # numbers that a body of MuJoCo can be drawn from; 0 for anything else
    action_bounds: Bounds | None = None  # lowest and highest, when continuous
    # Atari: whether the networks see all frames of a step, not only the last two. None for anything else.
    all_frames: bool | None = None

    def carried_out(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Returns actions (..., A) as the environment carries them out: continuous ones are clipped to their bounds."""
        return actions if self.action_bounds is None else actions.clip(*np.asarray(self.action_bounds, actions.dtype))


MOVING_DOT = EnvInfo(
    env_id=MOVING_DOT_ID,
    kind="pixels",
    observation_shape=PIXEL_SHAPE,
    n_actions=5,
    action_dim=None,
    segment_length=15,  # longer clips say less about a single step, and with them some seeds never learned
    fps=SCREEN_HZ / ATARI_FRAME_SKIP,
    frame_skip=ATARI_FRAME_SKIP,
    blank_areas=(),
    max_episode_frames=1000,
    action_names=("NOOP", "DOWN", "RIGHT", "UP", "LEFT"),
    tuned=TUNED.get(MOVING_DOT_ID, {}),
)


@lru_cache
def env_info(env_id: str) -> EnvInfo:
    """Returns the facts about an environment id; a task of rl-teacher's may lack its version (Hopper for Hopper-v1).

    Raises:
        EnvError: the id is unknown, a package is missing, or observations or actions cannot be used.
    """
    if env_id == MOVING_DOT_ID:
        return MOVING_DOT
    if (env_id := task_id(env_id)) in TASKS:
        return _task_info(env_id, TASKS[env_id])
    spec = find_spec(env_id)
    if is_atari(spec) and split_key(env_id)[1] is not None:
        raise EnvError(f"{env_id} observes one picture, which has no named parts: leave out --observation_key.")
    return _atari_info(env_id, spec) if is_atari(spec) else _generic_info(env_id, spec)


def _atari_info(env_id: str, spec: EnvSpec) -> EnvInfo:
    kwargs = atari_kwargs(spec)
    rom = kwargs["game"]
    if kwargs.get("obs_type", "rgb") == "ram" or kwargs.get("continuous", False):
        raise EnvError(f"{env_id} has no picture or no discrete actions: use an id such as PongNoFrameskip-v4.")
    emulator = ale_py.ALEInterface()
    path = ale_py.roms.get_rom_path(rom)
    if path is None:
        raise EnvError(f"ale-py has no ROM for {env_id}: reinstall ale-py.")
    emulator.loadROM(path)
    actions = emulator.getLegalActionSet() if kwargs["full_action_space"] else emulator.getMinimalActionSet()
    return EnvInfo(
        env_id=env_id,
        kind="pixels",
        observation_shape=PIXEL_SHAPE,
        n_actions=len(actions),
        action_dim=None,
        segment_length=SEGMENT_LENGTH,
        fps=SCREEN_HZ / ATARI_FRAME_SKIP,
        frame_skip=ATARI_FRAME_SKIP,
        blank_areas=_BLANK_AREAS.get(rom, ()),
        max_episode_frames=_MAX_EPISODE_FRAMES.get(rom, kwargs["max_num_frames_per_episode"]),
        action_names=tuple(action.name for action in actions),
        tuned={**PIXEL_DEFAULTS, "all_frames": rom in ALL_FRAMES, **TUNED_GAMES.get(rom, {})},
        all_frames=rom in ALL_FRAMES,
    )


def _generic_info(env_id: str, spec: EnvSpec) -> EnvInfo:
    with make(spec) as env:
        reading = reading_of(env_id, env.observation_space, split_key(env_id)[1])
        n_actions, action_dim, bounds = _actions(env_id, env.action_space)
        fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)
        state_size = env.unwrapped.state_vector().size if is_body(spec) else 0
        if is_body(spec):
            fps = min(fps, BODY_FPS)
    return EnvInfo(
        env_id=env_id,
        kind=reading.kind,
        observation_shape=PIXEL_SHAPE if reading.kind == "pixels" else (reading.size,),
        n_actions=n_actions,
        action_dim=action_dim,
        segment_length=_SEGMENT_LENGTHS.get(env_id, _clip_steps(fps)),
        fps=fps,
        frame_skip=1,
        blank_areas=(),
        max_episode_frames=spec.max_episode_steps,
        action_names=tuple(str(action) for action in range(n_actions or 0)),
        tuned={
            **(VECTOR_DEFAULTS if reading.kind == "vector" else PIXEL_DEFAULTS),
            **(BODY_DEFAULTS if is_body(spec) else {}),
            **TUNED.get(env_id, {}),
        },
        state_size=state_size,
        action_bounds=bounds,
    )


def _task_info(env_id: str, task: Task) -> EnvInfo:
    """Returns the facts about one of rl-teacher's tasks, most of which are Gymnasium's about the body."""
    body = env_info(task.gymnasium_id)
    return replace(
        body,
        env_id=env_id,
        segment_length=_clip_steps(task.fps),
        fps=task.fps,
        max_episode_frames=task.horizon,
        tuned={**body.tuned, **TUNED.get(env_id, {})},
    )


def _clip_steps(fps: float) -> int:
    """Returns the agent steps of a clip, off Atari."""
    least, most = SEGMENT_BOUNDS
    return min(max(round(SEGMENT_SECONDS * fps), least), most)


def _actions(env_id: str, space: gymnasium.Space[Any]) -> tuple[int | None, int | None, Bounds | None]:
    """Returns the number of discrete actions, or else the size of a continuous action and its bounds."""
    if isinstance(space, Discrete) and space.start == 0:
        return int(space.n), None, None
    if isinstance(space, Box) and len(space.shape) == 1 and np.issubdtype(cast(Any, space.dtype), np.floating):
        return None, space.shape[0], (tuple(space.low.tolist()), tuple(space.high.tolist()))
    raise EnvError(
        f"{env_id} takes actions from {space}, but only Discrete (counted from 0) and 1-D floating-point Box "
        f"can be used: register a version wrapped in, for example, gymnasium.wrappers.TransformAction."
    )
