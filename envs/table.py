"""What the rest of the project needs to know about an environment, looked up by its id."""

import difflib
import importlib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, cast

import ale_py
import ale_py.roms
import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from drlhp.errors import UserError, reason_of

from .bodies import TASKS, Task, task_id

gymnasium.register_envs(ale_py)
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for every emulator that starts

STACK = 4
PICTURE = 84  # side of the network's picture, pixels
PIXEL_SHAPE = (STACK, PICTURE, PICTURE)
SEGMENT_LENGTH = 25  # agent steps (paper, appendix A.2)
SEGMENT_SECONDS = 1.5  # off Atari,
SEGMENT_BOUNDS = 15, 60  # which was so many agent steps by task (paper, appendix A.1)
BODY_FPS = SEGMENT_BOUNDS[1] / SEGMENT_SECONDS  # at most: quicker bodies are seen slower than they move
SCREEN_HZ = 60
DEFAULT_FPS = 30.0
ATARI_FRAME_SKIP = 4
ATARI_SCREEN = (210, 160)  # rows, columns
# Where an id does not say: ale-py's own defaults, and half an hour as its ids have it, for an episode has to end.
_ATARI_KWARGS = {
    "repeat_action_probability": 0.25,
    "full_action_space": False,
    "max_num_frames_per_episode": 108_000,
}

MOVING_DOT_ID = "MovingDotNoFrameskip-v0"

# (top, bottom, left, right) by ROM. The paper blacks out the score, BeamRider's count of enemy ships and
# Enduro's speedometer (appendix A.2), since they would tell the predictor the reward. Two things share the
# score's place and are hidden with it: Space Invaders' mothership and the top of Qbert's highest jumps.
_BLANK_AREAS: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "beam_rider": ((8, 20, 56, 112), (32, 40, 16, 36)),
    "breakout": ((5, 15, 36, 80),),
    "enduro": ((160, 210, 0, 160),),
    "pong": ((0, 22, 0, 160),),
    "qbert": ((5, 15, 32, 72),),
    "seaquest": ((7, 20, 56, 108),),
    "space_invaders": ((8, 22, 0, 160),),
}
# What good behaviour is, for labellers who were told nothing else: by ROM, or by name without the version.
_TASKS: dict[str, str] = {
    "beam_rider": "Shoot the enemy ships, and do not get hit.",
    "breakout": "Keep the ball in play, and hit as many bricks with it as you can.",
    "enduro": "Drive fast and pass as many cars as you can, without bumping into any.",
    "pong": "The green paddle, on the right, should get the ball past the other one.",
    "qbert": "Hop on cubes to change their colour; do not fall off or get caught.",
    "seaquest": "Shoot fish and submarines, fetch divers, and come up for air in time.",
    "space_invaders": "Shoot the invaders, and do not get hit.",
    "Ant": "Run forward, to the right, as fast as you can.",
    "CartPole": "Keep the pole upright and the cart near the middle.",
    "HalfCheetah": "Run forward, to the right, as fast as you can.",
    "Hopper": "Hop forward, to the right, as fast as you can without falling.",
    "MovingDot": "Bring the white dot to the middle of the picture, and keep it there.",
    "InvertedDoublePendulum": "Keep both poles upright.",
    "InvertedPendulum": "Keep the pole upright.",
    "Reacher": "Bring the tip of the arm to the dot, and keep it there.",
    "Swimmer": "Swim forward, to the right, as fast as you can.",
    "Walker": "Walk forward, to the right, as fast as you can without falling.",
    "Walker2d": "Walk forward, to the right, as fast as you can without falling.",
}
_ATARI_TASK = "Score as many points as you can, and do not lose lives."
# Enduro's weather changes after some 3,000 frames; its episodes end before that.
_MAX_EPISODE_FRAMES: dict[str, int] = {"enduro": 3000}

# The untrained agent's episodes are over after some 22 steps here; less than half a clip's length gives no clip.
_SEGMENT_LENGTHS: dict[str, int] = {"CartPole-v0": 25, "CartPole-v1": 25}

# For all vector observations: flag name -> value. What the paper has for Atari is the default of each flag.
VECTOR_DEFAULTS: dict[str, object] = {
    # The paper's settings of its MuJoCo tasks (section 3.1.1, appendix A.1).
    "gamma": 0.995,
    "gae_lambda": 0.97,
    "reward_std": 1.0,
    "reward_predictor_uses_actions": True,
    "n_initial_prefs": 175,  # a quarter of all
    "max_prefs": 700,
    # The field's settings of PPO on MuJoCo, but with minibatches four times as large and twice the learning rate, which
    # take a third of the time.
    "algo": "ppo",
    "million_timesteps": 2.0,
    "lr": 6e-4,
    "lr_zero_million_timesteps": 2.0,
    "n_envs": 16,
    "n_steps": 128,
    "ppo_epochs": 10,
    "ppo_minibatches": 8,
}

# Tuned defaults: environment id -> flag name -> value. A task of rl-teacher's has those of the body's version 5 too.
_TUNED: dict[str, dict[str, object]] = {
    MOVING_DOT_ID: {
        "million_timesteps": 0.1,
        "eval_interval_million_timesteps": 0.05,
        "lr": 3e-3,
        "lr_zero_million_timesteps": 0.1,
        "gamma": 0.9,  # a step is rewarded at once
        "policy_network": "feature_points",
        "reward_predictor_network": "feature_points",
        "reward_predictor_uses_actions": True,  # what is rewarded is where the dot was sent
        "reward_predictor_learning_rate": 3e-3,
        "reward_std": 1.0,
        "ensemble_size": 1,
        "labels_per_step": 0.1,
        "n_initial_epochs": 30,
        "n_initial_prefs": 250,
        "max_prefs": 500,
    },
    # Its targets change every 50 steps, and a discount that looks beyond drowns what depends on them: at 0.995 the arm
    # only ever folded itself up, in the middle of all places where targets may be. What is left of the way at last is
    # less than three predictors together see.
    **{f"Reacher-v{version}": {"gamma": 0.95, "ensemble_size": 6} for version in (4, 5)},
    # Of whole episodes it would spend most on the ground, learn how to lie there, and hardly how to walk.
    "Walker-v1": {"first_episode_steps": 100},
    # The Ant turns over by thrashing, and then lies on its back; in Gymnasium's tasks torque is dear, too. So it begins
    # with small actions, and what it learns with these, large updates undo. Gymnasium's tasks, which end an episode by
    # the body's height, let it try larger ones.
    "Ant-v1": {"first_episode_steps": 100, "init_noise_std": 0.1},
    **{f"Ant-v{version}": {"init_noise_std": 0.2, "ent_coef": 0.0, "lr": 2e-4} for version in (4, 5)},
    # Once it stands in every episode, larger updates may let it forget how to catch itself.
    **{f"InvertedDoublePendulum-v{version}": {"lr": 2e-4} for version in (4, 5)},
    # A stroke pays only later: at a discount of 0.995 it learns to wriggle (Franceschetti et al. 2022, arXiv
    # 2208.07587), and where advantages look ahead by a lambda of 0.97 or by rollouts of 128 steps, mostly a stroke half
    # as fast. The paper's entropy bonus, the only setting that it tuned for a single task (0.001, appendix A.1), let it
    # settle on labels in a still pose that the first predictor takes for better than most.
    **{
        f"Swimmer-v{version}": {"ent_coef": 0.05, "gamma": 0.9999, "gae_lambda": 0.995, "n_envs": 8, "n_steps": 256}
        for version in (4, 5)
    },
}


Bounds = tuple[tuple[float, ...], tuple[float, ...]]


class EnvError(UserError, ValueError):
    """An environment cannot be used; the message is one sentence that says what would work."""


@dataclass(frozen=True)
class EnvInfo:
    """Facts about one environment id; times are in agent steps unless a name says frames."""

    env_id: str
    kind: Literal["pixels", "vector"]
    observation_shape: tuple[int, ...]  # pixels: (4, 84, 84) uint8; vector: (D,) float32
    n_actions: int | None  # None when actions are continuous
    action_dim: int | None  # None when actions are discrete
    segment_length: int
    fps: float  # agent steps per second as people see it: real time, but for bodies of MuJoCo
    frame_skip: int
    blank_areas: tuple[tuple[int, int, int, int], ...]  # (top, bottom, left, right), screen pixels
    max_episode_frames: int | None
    action_names: tuple[str, ...]  # by action number; empty when actions are continuous
    tuned: Mapping[str, object]  # by flag name
    state_size: int = 0  # numbers that say where a body of MuJoCo is, from which it is drawn; 0 for anything else
    action_bounds: Bounds | None = None  # lowest and highest, when continuous

    def carried_out(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Actions (..., A) as the environment carries them out: continuous ones are clipped to their bounds."""
        return actions if self.action_bounds is None else actions.clip(*np.asarray(self.action_bounds, actions.dtype))


MOVING_DOT = EnvInfo(
    env_id=MOVING_DOT_ID,
    kind="pixels",
    observation_shape=PIXEL_SHAPE,
    n_actions=5,
    action_dim=None,
    segment_length=15,  # of longer clips the answers say less about a single step, and some seeds got stuck for good
    fps=SCREEN_HZ / ATARI_FRAME_SKIP,
    frame_skip=ATARI_FRAME_SKIP,
    blank_areas=(),
    max_episode_frames=1000,
    action_names=("NOOP", "DOWN", "RIGHT", "UP", "LEFT"),
    tuned=_TUNED.get(MOVING_DOT_ID, {}),
)


@lru_cache
def env_info(env_id: str) -> EnvInfo:
    """Look up an environment id; a task of rl-teacher's may lack its version (Hopper), the answer has it (Hopper-v1).

    Raises EnvError for an unknown id, a missing package, or observations or actions that cannot be used.
    """
    if env_id == MOVING_DOT_ID:
        return MOVING_DOT
    if (env_id := task_id(env_id)) in TASKS:
        return _task_info(env_id, TASKS[env_id])
    spec = find_spec(env_id)
    return _atari_info(env_id, spec) if is_atari(spec) else _generic_info(env_id, spec)


def task_of(env_id: str) -> str:
    """What good behaviour is, in one sentence; empty for an environment that is not known here."""
    if env_id == MOVING_DOT_ID:
        return _TASKS["MovingDot"]
    if (name := task_id(env_id)) in TASKS:
        return _TASKS[name.removeprefix("Short").removesuffix("-v1")]
    try:
        spec = find_spec(env_id)
    except EnvError:
        return ""
    return _TASKS.get(spec.kwargs["game"], _ATARI_TASK) if is_atari(spec) else _TASKS.get(spec.name, "")


def find_spec(env_id: str) -> EnvSpec:
    """Gymnasium's record of an id; `module:id` imports the module first, so that it can register its ids."""
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise EnvError(f"{env_id} needs the Python package {module!r}: install it ({error}).") from error
        except (Exception, SystemExit) as error:  # a user's module may raise anything
            what = f"{type(error).__name__} ({reason_of(error)})"
            raise EnvError(f"{env_id} cannot be had: importing {module} failed with {what}; mend it.") from error
    spec = gymnasium.registry.get(name)
    if spec is None or _has_left(spec):
        raise EnvError(_unknown_message(env_id, name))
    return spec


def is_atari(spec: EnvSpec) -> bool:
    """Whether an id is an Atari game of ale-py's, as it is: in wrappers or another mode it is another environment."""
    changed = spec.additional_wrappers or {"mode", "difficulty"} & spec.kwargs.keys()
    return spec.entry_point == "ale_py.env:AtariEnv" and "game" in spec.kwargs and not changed


def atari_kwargs(spec: EnvSpec) -> dict[str, Any]:
    """How an id of an Atari game starts the emulator; whoever registered it need not have said all of it."""
    return _ATARI_KWARGS | spec.kwargs


def is_body(spec: EnvSpec) -> bool:
    """Whether an id is one of Gymnasium's MuJoCo environments, as it is: in wrappers it is another task."""
    return str(spec.entry_point).startswith("gymnasium.envs.mujoco") and not spec.additional_wrappers


def _has_left(spec: EnvSpec) -> bool:
    """Whether Gymnasium knows the id only to say that it is elsewhere now: MuJoCo's old versions."""
    return getattr(spec.entry_point, "__name__", "") == "_raise_mujoco_py_error"


def _unknown_message(env_id: str, name: str) -> str:
    pixels_name = name.replace("-ramDeterministic", "NoFrameskip").replace("-ram", "")
    if "-ram" in name and pixels_name in gymnasium.registry:
        return f"{env_id} observes the console's memory, not its picture: use {pixels_name} instead."
    there = [known for known, spec in gymnasium.registry.items() if not _has_left(spec)]
    # A name without a version stands for the id that the project's documents use.
    ours = (MOVING_DOT_ID, *TASKS, *(known for known in there if known.endswith("NoFrameskip-v4")))
    named: dict[str, str] = {}
    for known in (*ours, *there):
        for form in (known, re.sub(r"(NoFrameskip)?-v\d+$", "", known)):
            named.setdefault(form.lower(), known)
    # Each once, though several of its forms may be close.
    close = list(dict.fromkeys(named[form] for form in difflib.get_close_matches(name.lower(), named, n=8)))
    meant = close[:3] or ["PongNoFrameskip-v4"]
    others = ["any other Atari game", *([] if MOVING_DOT_ID in meant else [MOVING_DOT_ID])]
    return (
        f"No environment is called {env_id!r}: try {', '.join([*meant, *others])}, or module:id for what a Python "
        "package registers with Gymnasium."
    )


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
        tuned=_TUNED.get(env_id, {}),
    )


def make(spec: EnvSpec, **options: Any) -> Any:
    """`gymnasium.make`; raises EnvError with what its constructor said."""
    try:
        return gymnasium.make(spec, **options)
    except Exception as error:  # a constructor may raise anything
        reason = reason_of(error)
        renderer = os.environ.get("MUJOCO_GL")
        if renderer and is_body(spec) and "mujoco" not in sys.modules:  # it looks for the renderer when it is imported
            raise EnvError(
                f"MuJoCo does not start with MUJOCO_GL={renderer} ({reason}): unset it, or let it name a renderer that "
                "is installed: egl, osmesa or, with a display, glfw."
            ) from error
        raise EnvError(f"{spec.id} could not be created: {reason}.") from error


def _generic_info(env_id: str, spec: EnvSpec) -> EnvInfo:
    with make(spec) as env:
        kind, shape = _observations(env_id, env.observation_space)
        n_actions, action_dim, bounds = _actions(env_id, env.action_space)
        fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)
        state_size = env.unwrapped.state_vector().size if is_body(spec) else 0
        if is_body(spec):
            fps = min(fps, BODY_FPS)
    return EnvInfo(
        env_id=env_id,
        kind=kind,
        observation_shape=shape,
        n_actions=n_actions,
        action_dim=action_dim,
        segment_length=_SEGMENT_LENGTHS.get(env_id, _clip_steps(fps)),
        fps=fps,
        frame_skip=1,
        blank_areas=(),
        max_episode_frames=spec.max_episode_steps,
        action_names=tuple(str(action) for action in range(n_actions or 0)),
        tuned={
            **(VECTOR_DEFAULTS if kind == "vector" else {}),
            **_TUNED.get(env_id, {}),
        },
        state_size=state_size,
        action_bounds=bounds,
    )


def _task_info(env_id: str, task: Task) -> EnvInfo:
    """One of rl-teacher's tasks, by what Gymnasium says of the body; people see it slower than it moves."""
    body = env_info(task.gymnasium_id)
    return replace(
        body,
        env_id=env_id,
        segment_length=_clip_steps(task.fps),
        fps=task.fps,
        max_episode_frames=task.horizon,
        tuned={**body.tuned, **_TUNED.get(env_id, {})},
    )


def _clip_steps(fps: float) -> int:
    """Agent steps of a clip, off Atari."""
    least, most = SEGMENT_BOUNDS
    return min(max(round(SEGMENT_SECONDS * fps), least), most)


def _observations(env_id: str, space: gymnasium.Space[Any]) -> tuple[Literal["pixels", "vector"], tuple[int, ...]]:
    if isinstance(space, Box):
        shape = space.shape
        if len(shape) == 1:
            return "vector", shape
        if space.dtype == np.uint8 and (len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)):
            return "pixels", PIXEL_SHAPE
    raise EnvError(
        f"{env_id} observes {space}, but only 1-D Box vectors and uint8 Box images of shape (H, W, 3) or "
        f"(H, W) can be used: register a version wrapped in, say, gymnasium.wrappers.FlattenObservation."
    )


def _actions(env_id: str, space: gymnasium.Space[Any]) -> tuple[int | None, int | None, Bounds | None]:
    """How many there are, or else how many numbers one has and what bounds these."""
    if isinstance(space, Discrete) and space.start == 0:
        return int(space.n), None, None
    if isinstance(space, Box) and len(space.shape) == 1 and np.issubdtype(cast(Any, space.dtype), np.floating):
        return None, space.shape[0], (tuple(space.low.tolist()), tuple(space.high.tolist()))
    raise EnvError(
        f"{env_id} takes actions from {space}, but only Discrete (counted from 0) and 1-D floating-point Box "
        f"can be used: register a version wrapped in, for example, gymnasium.wrappers.TransformAction."
    )
