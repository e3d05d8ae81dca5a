"""Reads recorded play, and starts a policy as its imitation (after Ibarz et al. 2018, arXiv 1811.06521).

A file is a compressed npz of plain arrays: whole episodes, each frame once.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from a2c.acting import ActingPolicy
from a2c.model import PIXEL_STEPS, Policy
from drlhp.errors import UserError
from drlhp.networks.device import to_device
from drlhp.networks.optimizers import UncompiledAdam
from drlhp.runtime.regular_files import open_regular
from envs import EnvInfo, make_vec_env

SCHEMA_VERSION = 1
# What stops cloning is the part held out; the rest are the field's common settings of supervised learning.
MAX_EPOCHS = 50
PATIENCE_EPOCHS = 3  # without a gain on the held-out steps
HELD_OUT = 0.1  # of the steps
BATCH_SIZE = 64
LEARNING_RATE = 1e-3
MAX_BATCHES_PER_EPOCH = 2000  # a long recording is learned in parts, so that the held-out loss is checked now and then
# Play recorded with the most likely actions never varies: with no standard deviation left, nothing is explored.
MIN_STD = 0.1


@dataclass(frozen=True)
class Demonstrations:
    """Whole episodes of recorded play, one after the other; T steps in all.

    Shapes: frames, for pixels the unique ones of each episode, (T + episodes * (stack - 1), H, W) uint8; for vectors
    the observations, (T, D) float32. Actions (T,) int64 or (T, A) float32; rewards (T,) float32, the environment's own.
    """

    env_id: str
    stack: int  # 1 for vectors
    lengths: np.ndarray  # (episodes,) int64, agent steps
    frames: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray

    def __len__(self) -> int:
        return len(self.actions)

    def observations(self, steps: np.ndarray) -> np.ndarray:
        """Returns the observations at these steps (B,): (B, stack, H, W) uint8 or (B, D) float32."""
        if self.stack == 1:
            return self.frames[steps]
        episode = np.searchsorted(np.cumsum(self.lengths), steps, side="right")
        first = steps + episode * (self.stack - 1)
        return self.frames[first[:, None] + np.arange(self.stack)]

    def returns(self) -> np.ndarray:
        """Returns the sums of the true reward (episodes,)."""
        return np.add.reduceat(self.rewards, np.cumsum(self.lengths) - self.lengths)

    def save(self, path: Path) -> None:
        """Writes an npz file; raises OSError if it cannot."""
        arrays = {name: getattr(self, name) for name in ("env_id", "stack", "lengths", "frames", "actions", "rewards")}
        with path.open("xb") as file:
            np.savez_compressed(file, schema_version=SCHEMA_VERSION, **arrays)

    @classmethod
    def load(cls, place: Path, info: EnvInfo) -> Demonstrations:
        """Reads a file, or all .npz files of a folder as one recording.

        Raises:
            UserError: there is none, or one is damaged, of another version, another environment or other shapes.
        """
        paths = sorted(place.glob("*.npz")) if place.is_dir() else [place]
        if not paths or not paths[0].exists():
            what = "holds no .npz file" if place.is_dir() else "does not exist"
            raise UserError(f"--demonstrations {place} {what}; record some with watch --record_demonstrations.")
        parts = [_read(path, info) for path in paths]
        return joined(parts)


def _read(path: Path, info: EnvInfo) -> Demonstrations:
    """Reads one file and checks it against the environment; raises UserError."""
    try:
        with open_regular(path) as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        version, env_id, stack = (arrays.pop(name).item() for name in ("schema_version", "env_id", "stack"))
        read = Demonstrations(env_id, stack, **arrays)
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise UserError(f"{path} is damaged or no recording of ours; record it anew.") from error
    if version != SCHEMA_VERSION:
        raise UserError(f"{path} has version {version} of the format, not {SCHEMA_VERSION}; record it anew.")
    if read.env_id != info.env_id:
        raise UserError(
            f"{path} was recorded in {read.env_id}, not in {info.env_id}; give recordings of {info.env_id}."
        )
    problem = _misfit(read, info)
    if problem:
        raise UserError(f"{path} does not fit {info.env_id}: {problem}; record it anew.")
    return read


def _misfit(read: Demonstrations, info: EnvInfo) -> str | None:
    """Returns how a recording does not fit the environment, expected and found; None if it fits."""
    pixels = info.kind == "pixels"
    stack = info.observation_shape[0] if pixels else 1
    lengths = read.lengths
    if lengths.dtype != np.int64 or lengths.ndim != 1 or not len(lengths) or (lengths < 1).any() or read.stack != stack:
        return f"expected episodes of one step or more, and {stack} stacked frames"
    steps = int(lengths.sum())
    n_frames = steps + len(lengths) * (stack - 1)
    frame = info.observation_shape[1:] if pixels else info.observation_shape
    expected = {
        "frames": ((n_frames, *frame), np.uint8 if pixels else np.float32),
        "actions": ((steps,), np.int64) if info.n_actions else ((steps, info.action_dim), np.float32),
        "rewards": ((steps,), np.float32),
    }
    for name, (shape, dtype) in expected.items():
        array = getattr(read, name)
        if array.shape != shape or array.dtype != dtype:
            return f"{name} should be {np.dtype(dtype)} {shape}, and are {array.dtype} {array.shape}"
        if array.dtype == np.float32 and not np.isfinite(array).all():
            return f"{name} should be finite numbers"
    if info.n_actions and not ((read.actions >= 0) & (read.actions < info.n_actions)).all():
        return f"actions should be from 0 to {info.n_actions - 1}"
    return None


def record(
    info: EnvInfo, policy: ActingPolicy, *, episodes: int, seed: int, deterministic: bool
) -> Iterator[Demonstrations]:
    """Plays whole episodes, and yields each one when it ends."""
    env = make_vec_env(info.env_id, 1, seed, all_frames=info.all_frames)
    try:
        for _ in range(episodes):
            observations, _ = env.reset()
            memory = np.zeros((1, policy.memory_size), np.float32)
            seen, actions, rewards = list[np.ndarray](), list[np.ndarray](), list[float]()
            done = False
            while not done:
                chosen = policy.act(observations, None if deterministic else policy.noise(1), memory)[0]
                of_pixels = info.kind == "pixels"
                new = observations[0] if not of_pixels or not seen else observations[0, -1:]
                seen.append(new.copy() if of_pixels else new[None].copy())
                actions.append(chosen[0])
                observations, reward, terminated, truncated, _ = env.step(chosen)
                rewards.append(float(reward[0]))
                done = bool(terminated[0] or truncated[0])
            yield Demonstrations(
                info.env_id,
                info.observation_shape[0] if info.kind == "pixels" else 1,
                np.array([len(actions)], np.int64),
                np.concatenate(seen),
                np.array(actions, np.int64 if info.n_actions else np.float32),
                np.array(rewards, np.float32),
            )
    finally:
        env.close()


def joined(parts: list[Demonstrations]) -> Demonstrations:
    """Returns several recordings of one environment as one."""
    if len(parts) == 1:
        return parts[0]
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("lengths", "frames", "actions", "rewards")
    }
    return Demonstrations(parts[0].env_id, parts[0].stack, **arrays)


def clone(
    policy: Policy,
    shown: Demonstrations,
    *,
    seed: int,
    normalise_pixels: bool,
    report: Callable[[int, float], bool] = lambda epoch, likelihood: True,
) -> float:
    """Teaches the policy the recorded actions, so that they become the most likely ones.

    This is supervised learning by log-probability (cross-entropy, or a Gaussian's). The last tenth of the steps is held
    out, in one piece because neighbours look alike; the weights that do best on it are kept. The value head learns
    nothing: the value of the recorded play depends on a reward that is not learned yet.

    Args:
        normalise_pixels: normalise observations by the statistics of the recording, as training would by its own.
        report: called after each epoch with its number and the held-out mean log-probability; False stops.

    Returns:
        The mean log-probability of the held-out actions.
    """
    rng = np.random.default_rng(seed)
    n_train = max(1, round((1 - HELD_OUT) * len(shown)))
    train, held_out = np.arange(n_train), np.arange(min(n_train, len(shown) - 1), len(shown))
    if normalise_pixels:
        for steps in _batches(train[:: math.ceil(n_train / PIXEL_STEPS)]):
            policy.observe(shown.observations(steps))
    parameters = [p for name, p in policy.named_parameters() if not name.startswith("critic")]
    optimizer = UncompiledAdam(parameters, lr=LEARNING_RATE)
    best, best_epoch = (log_probability(policy, shown, held_out), _copied(policy)), 0
    for epoch in range(1, MAX_EPOCHS + 1):
        for steps in _batches(rng.permutation(train)[: MAX_BATCHES_PER_EPOCH * BATCH_SIZE]):
            loss = -_log_probabilities(policy, shown, steps).mean()
            policy.set_gradients([torch.autograd.grad(loss, policy.weights(), materialize_grads=True)])
            optimizer.step()
            if policy.log_std is not None:
                policy.log_std.data.clamp_(min=math.log(MIN_STD))
            policy.refresh()
        likelihood = log_probability(policy, shown, held_out)
        if likelihood > best[0]:
            best, best_epoch = (likelihood, _copied(policy)), epoch
        if not report(epoch, likelihood) or epoch - best_epoch >= PATIENCE_EPOCHS:
            break
    policy.load_state_dict(best[1])
    return best[0]


@torch.inference_mode()
def log_probability(policy: Policy, shown: Demonstrations, steps: np.ndarray) -> float:
    """Returns the policy's mean log-probability of the actions recorded at these steps."""
    return float(np.mean([_log_probabilities(policy, shown, part).mean().item() for part in _batches(steps)]))


def _log_probabilities(policy: Policy, shown: Demonstrations, steps: np.ndarray) -> Tensor:
    """Returns the log-probabilities (B,) of the actions recorded at these steps (B,)."""
    observations = to_device(shown.observations(steps), policy.device)
    return policy.evaluate(observations, to_device(shown.actions[steps], policy.device)).log_probs


def _batches(steps: np.ndarray) -> list[np.ndarray]:
    return [steps[start : start + BATCH_SIZE] for start in range(0, len(steps), BATCH_SIZE)]


def _copied(policy: Policy) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in policy.state_dict().items()}
