"""The environments of a process, which are its share of all; a leader's beside a GPU are two groups that take turns."""

from __future__ import annotations

import torch

from a2c.config import PolicyConfig
from a2c.crew import share
from drlhp.runtime.machine import n_cores
from envs import EnvInfo, PreferenceVecEnv, make_vec_env


def n_groups(info: EnvInfo, device: torch.device, n_envs: int) -> int:
    """Returns 2 if a GPU decides for one half of the environments while the other half is at work; else 1."""
    return 2 if device.type == "cuda" and info.kind == "pixels" and n_envs > 1 else 1


def make_groups(
    env_id: str,
    config: PolicyConfig,
    device: torch.device,
    info: EnvInfo,
    *,
    crew_size: int,
    seed: int,
    n_shown: int,
) -> list[PreferenceVecEnv]:
    """Makes the leader's share of the environments; environment i has the seed `seed + i`.

    Args:
        n_shown: how many of them draw what people see.
    """
    n_envs = share(config.n_envs, crew_size, 0).stop
    groups = n_groups(info, device, n_envs)
    # Emulators need no threads of their own beside other processes.
    n_threads = max(1, n_cores() // groups) if groups > 1 else int(crew_size > 1)
    made = []
    for i in range(groups):
        group = share(n_envs, groups, i)
        made.append(
            make_vec_env(
                env_id,
                group.stop - group.start,
                seed + group.start,
                0 if i else min(n_shown, group.stop),
                n_threads,
                whole_games=config.whole_games,
                all_frames=config.all_frames,
            )
        )
    return made


def make_share(env_id: str, config: PolicyConfig, mine: slice, seed: int, *, n_shown: int = 0) -> PreferenceVecEnv:
    """Makes the environments of a process that follows; environment i of the rollout has the seed `seed + i`."""
    return make_vec_env(
        env_id,
        mine.stop - mine.start,
        seed + mine.start,
        n_shown,
        n_threads=1,
        whole_games=config.whole_games,
        all_frames=config.all_frames,
    )
