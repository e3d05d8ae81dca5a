"""A custom loop over a vector environment: the cross-entropy method on linear policies.

python -m examples.wrapper_vector_loop
"""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np

from drlhp import HumanPreferencesVectorEnv


def main(log_dir: str | Path = "drlhp_logs/", n_labels: int = 100, n_generations: int = 20) -> None:
    """Learns from a synthetic teacher; with `synthetic_prefs=False`, you answer, in a window or on a web page."""
    rng, population = np.random.default_rng(0), 16
    envs = HumanPreferencesVectorEnv(
        gymnasium.make_vec("CartPole-v1", num_envs=population),
        segment_length=20,
        n_initial_prefs=n_labels // 2,
        max_prefs_in_db=n_labels,
        log_dir=log_dir,
    )
    envs.reset(seed=0)
    while not envs.using_reward_from_predictor:
        envs.step(envs.action_space.sample())

    mean, deviation = np.zeros(4), np.ones(4)
    for _ in range(n_generations):
        weights = mean + deviation * rng.normal(size=(population, 4))
        observations, _ = envs.reset()
        returns, alive = np.zeros(population), np.ones(population, bool)
        for _ in range(200):
            actions = ((observations * weights).sum(1) > 0).astype(np.int64)
            observations, rewards, terminated, truncated, _ = envs.step(actions)
            returns += rewards * alive
            alive &= ~(terminated | truncated)
        best = weights[np.argsort(returns)[-4:]]
        mean, deviation = best.mean(0), best.std(0) + 0.05
    envs.close()
    print(f"{n_generations} generations from {envs.pref_db_size.value} preferences; weights {mean.round(2)}.")


if __name__ == "__main__":
    main()
