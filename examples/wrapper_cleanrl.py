"""A training loop in CleanRL's style (A2C); the wrapper around the vector environment is all that is added.

python -m examples.wrapper_cleanrl
"""

from __future__ import annotations

from pathlib import Path

import gymnasium
import torch
from torch import nn
from torch.distributions import Categorical

from drlhp import HumanPreferencesVectorEnv


def main(log_dir: str | Path = "drlhp_logs/", n_labels: int = 100, n_updates: int = 500) -> None:
    """Learns from a synthetic teacher; with `synthetic_prefs=False`, you answer, in a window or on a web page."""
    num_envs, num_steps, gamma = 4, 8, 0.99
    torch.manual_seed(0)
    envs = HumanPreferencesVectorEnv(
        gymnasium.make_vec("CartPole-v1", num_envs=num_envs),
        segment_length=20,
        n_initial_prefs=n_labels // 2,
        max_prefs_in_db=n_labels,
        log_dir=log_dir,
    )
    envs.reset(seed=0)
    while not envs.using_reward_from_predictor:  # so that the agent never learns from the environment's own reward
        envs.step(envs.action_space.sample())

    actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
    next_obs = torch.as_tensor(envs.reset()[0])
    next_done = torch.zeros(num_envs)
    for _ in range(n_updates):
        log_probs, values, rewards, dones, entropies = [], [], [], [], []
        for _ in range(num_steps):
            policy = Categorical(logits=actor(next_obs))
            action = policy.sample()
            log_probs.append(policy.log_prob(action))
            entropies.append(policy.entropy())
            values.append(critic(next_obs).squeeze(1))
            observation, reward, terminated, truncated, info = envs.step(action.numpy())
            next_obs, next_done = torch.as_tensor(observation), torch.as_tensor(terminated | truncated).float()
            rewards.append(torch.as_tensor(reward).float())
            dones.append(next_done)
        returns: list[torch.Tensor] = []
        next_return = critic(next_obs).squeeze(1).detach()
        for reward_t, done_t in zip(reversed(rewards), reversed(dones), strict=True):
            next_return = reward_t + gamma * (1 - done_t) * next_return
            returns.insert(0, next_return)
        advantage = torch.stack(returns) - torch.stack(values)
        policy_loss = -(torch.stack(log_probs) * advantage.detach()).mean()
        loss = policy_loss + 0.5 * advantage.square().mean() - 0.01 * torch.stack(entropies).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    envs.close()
    print(f"{n_updates} updates from {envs.pref_db_size.value} preferences.")
    print(f"Predicted rewards of the last step {info['predicted_reward']}, true ones {info['true_reward']}.")


if __name__ == "__main__":
    main()
