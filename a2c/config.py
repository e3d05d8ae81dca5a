"""Settings of the policy and its training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from drlhp.bounds import POSITIVE, SHARE, at_least

Algo = Literal["a2c", "ppo", "trpo", "sac"]


@dataclass(frozen=True)
class PolicyConfig:
    """Policy training; values here are the paper's for Atari (appendix A.2), and envs/tuned.py has what differs."""

    algo: Algo = "a2c"
    """Update rule: n-step A2C (the paper's on Atari), PPO, TRPO (the paper's on MuJoCo; only for vectors), or SAC (only
    for vectors and continuous actions), which learns from past steps again and again."""
    n_envs: Annotated[int, at_least(1)] = 16
    """Parallel environments."""
    million_timesteps: Annotated[float, POSITIVE] = 10.0
    """Length of policy training, in million agent steps (four frames each on Atari)."""
    n_steps: Annotated[int, at_least(1)] = 5
    """Agent steps of each environment per update."""
    lr: Annotated[float, POSITIVE] = 7e-4
    """Learning rate of the policy at the start; with TRPO, of its value function."""
    lr_zero_million_timesteps: Annotated[float, at_least(0)] = 80.0
    """Million agent steps over which the learning rate falls linearly to 0; 0 keeps it constant. A longer training uses
    its own length."""
    ent_coef: Annotated[float, at_least(0)] = 0.01
    """Weight of the entropy bonus at the start."""
    ent_coef_zero_million_timesteps: Annotated[float, at_least(0)] = 0.0
    """Million agent steps over which the weight of the entropy bonus falls linearly to 0; 0 keeps it constant."""
    init_noise_std: Annotated[float, POSITIVE] = 0.37
    """Standard deviation of continuous actions at the start; of a box far from [-1, 1], in halves of its width."""
    gamma: Annotated[float, SHARE] = 0.99
    """Discount per agent step."""
    gae_lambda: Annotated[float, SHARE] = 1.0
    """Lambda of the advantage estimates; 1 gives n-step returns."""
    continuing_episodes: bool = False
    """Hide the ends of episodes from the policy, as in the paper: returns continue with the next episode's rewards.
    Off unless --preset paper is given, because results were measured with returns that end with the game."""
    whole_games: bool = False
    """Train on whole games of Enduro, through snow, night and fog, instead of the first 3,000 frames, whose rewards are
    easier to compare. Evaluations play whole games either way."""
    all_frames: bool = False
    """On Atari, show the networks the maximum of all four frames of an agent step, as people see it, instead of the
    last two. On by default for games that would otherwise hide objects from them, such as two of Pacman's ghosts."""
    first_episode_steps: Annotated[int, at_least(0)] = 0
    """Steps, at least those of a clip, after which a body's episode may end early. This happens at the end of a
    rollout, if the critic expects much less of the episode than of a new one. Without it, a body that falls would
    spend most steps on the ground. Evaluations play whole episodes; the training's true reward is of episodes as they
    were. 0: whole episodes."""
    ppo_epochs: Annotated[int, at_least(1)] = 4
    """Passes over each rollout (PPO only)."""
    ppo_minibatches: Annotated[int, at_least(1)] = 8
    """Minibatches per pass (PPO only)."""
    replay_ratio: Annotated[float, POSITIVE] = 0.125
    """Updates per agent step (SAC only)."""
    max_kl: Annotated[float, POSITIVE] = 0.01
    """Bound on the mean KL divergence between the policies before and after an update, in nats (TRPO only)."""
    normalise_pixels: bool = True
    """Normalise pixels by their mean and standard deviation in the first 10,000 agent steps, and vectors by those of
    all steps so far."""
    disagreement_bonus: Annotated[float, at_least(0)] = 0.0
    """Weight of a bonus for the ensemble's disagreement (the standard deviation of its rewards), which falls to 0 over
    the run."""
    explore_million_timesteps: Annotated[float, at_least(0)] = 0.0
    """Million agent steps in which the policy learns to reach states that are new to it, before any question is asked
    (PEBBLE's pre-training; B-Pref has 0.032). These steps do not count as training."""
    policy_reset_million_timesteps: Annotated[float, at_least(0)] = 0.0
    """Million agent steps after which the policy is reset: it gets new weights, and learns from the reward predictor as
    it is then. As many steps later, training goes on with the start whose newest steps the predictor rewards most.
    Habits from the time when the predictor knew little are hard to lose (the primacy bias, Nikishin et al. 2022). 0:
    never."""
    policy_resets: Annotated[int, at_least(1)] = 1
    """How many times the policy is reset, each time after as many steps."""
    policy_network: Literal["nature", "feature_points", "nature_lstm"] = "nature"
    """Network for pixel observations: the paper's CNN, learned feature points, or the CNN with a memory (an LSTM)."""
    demonstrations: str | None = None
    """Recorded play (an .npz file of `watch --record_demonstrations`, or a folder of them) that the policy imitates
    first."""
    load_policy_ckpt_dir: str | None = None
    """Folder with a policy checkpoint to start from."""
    policy_ckpt_interval: Annotated[int, at_least(1)] = 1000
    """Policy updates between checkpoints; there is also one every two minutes."""
    eval_interval_million_timesteps: float = 0.25
    """Million agent steps between evaluations of the policy, which also take place before and after training; 0:
    none."""
    eval_episodes: Annotated[int, at_least(1)] = 20
    """Episodes of an evaluation, from the same starts in every run: this many with the most likely actions, and as many
    with random ones."""
    log_interval: Annotated[int, at_least(1)] = 20
    """Policy updates between points of the TensorBoard curves."""


# Defaults with `--algo ppo`: the field's common settings of PPO on Atari.
PPO_DEFAULTS: dict[str, object] = {
    "n_steps": 128,
    "lr": 2.5e-4,
    "lr_zero_million_timesteps": 20.0,
    "gae_lambda": 0.95,
}
# Defaults with `--algo trpo`: the learning rate of OpenAI's baselines, the paper's lambda on MuJoCo, and rollouts as
# long as PPO's, because the policy takes one step per rollout.
TRPO_DEFAULTS: dict[str, object] = {
    "n_steps": 128,
    "lr": 1e-3,
    "lr_zero_million_timesteps": 0.0,
    "gae_lambda": 0.97,
}
# Defaults with `--algo sac`: the field's learning rate and discount, short rollouts, and half of PPO's steps.
SAC_DEFAULTS: dict[str, object] = {
    "n_envs": 16,
    "n_steps": 8,
    "lr": 3e-4,
    "lr_zero_million_timesteps": 0.0,
    "gamma": 0.99,
    "million_timesteps": 1.0,
}
ALGORITHMS_DEFAULTS: dict[str, dict[str, object]] = {
    "a2c": {},
    "ppo": PPO_DEFAULTS,
    "trpo": TRPO_DEFAULTS,
    "sac": SAC_DEFAULTS,
}
