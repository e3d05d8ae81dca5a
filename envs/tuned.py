"""Tuned defaults of flags, by environment."""

from .registry import MOVING_DOT_ID

# For all vector observations: flag name -> value. The default of each flag is what the paper has for Atari.
VECTOR_DEFAULTS: dict[str, object] = {
    # The paper's settings of its MuJoCo tasks (section 3.1.1, appendix A.1).
    "gamma": 0.995,
    "gae_lambda": 0.97,
    "reward_std": 1.0,
    "reward_predictor_uses_actions": True,
    "n_initial_prefs": 175,  # a quarter of all
    "max_prefs": 700,
    # The field's settings of PPO on MuJoCo, except that minibatches are four times as large and the learning rate is
    # doubled: this takes a third of the time.
    "algo": "ppo",
    "million_timesteps": 2.0,
    "lr": 6e-4,
    "lr_zero_million_timesteps": 2.0,
    "n_envs": 16,
    "n_steps": 128,
    "ppo_epochs": 10,
    "ppo_minibatches": 8,
}

# Tuned defaults: environment id -> flag name -> value. rl-teacher's tasks also get those of the body's version 5.
TUNED: dict[str, dict[str, object]] = {
    MOVING_DOT_ID: {
        "million_timesteps": 0.1,
        "eval_interval_million_timesteps": 0.05,
        "lr": 3e-3,
        "lr_zero_million_timesteps": 0.1,
        "gamma": 0.9,  # each step is rewarded at once
        "policy_network": "feature_points",
        "reward_predictor_network": "feature_points",
        "reward_predictor_uses_actions": True,  # the reward depends on the direction that the dot was sent in
        "reward_predictor_learning_rate": 3e-3,
        "reward_std": 1.0,
        "ensemble_size": 1,
        "labels_per_step": 0.1,
        "n_initial_epochs": 30,
        "n_initial_prefs": 250,
        "max_prefs": 500,
    },
    # The target changes every 50 steps, so later rewards only add noise: at a discount of 0.995 the arm just folded
    # itself up, in the middle of all places of targets. The last centimetres of the way need an average of six
    # predictors; three do not see them.
    **{f"Reacher-v{version}": {"gamma": 0.95, "ensemble_size": 6} for version in (4, 5)},
    # In whole episodes the Walker would spend most steps on the ground, and learn to lie there rather than to walk.
    "Walker-v1": {"first_episode_steps": 100},
    # The Ant thrashes until it lies on its back, and Gymnasium's tasks make torque expensive, too. So it begins with
    # small actions, and large updates would undo what it learns with them. Gymnasium's tasks allow larger actions,
    # because they end an episode by the body's height.
    "Ant-v1": {"first_episode_steps": 100, "init_noise_std": 0.1},
    **{f"Ant-v{version}": {"init_noise_std": 0.2, "ent_coef": 0.0, "lr": 2e-4} for version in (4, 5)},
    # Once the pendulum stands in every episode, larger updates may make it forget how to catch itself.
    **{f"InvertedDoublePendulum-v{version}": {"lr": 2e-4} for version in (4, 5)},
    # A stroke pays only later. At a discount of 0.995 the Swimmer learns to wriggle (Franceschetti et al. 2022, arXiv
    # 2208.07587). With a lambda of 0.97 or rollouts of 128 steps it mostly learns a stroke half as fast. The paper's
    # entropy bonus (0.001, appendix A.1) is the only setting that it tuned for a single task. With it, and on labels,
    # the Swimmer settled in a still pose that the first predictor rated above most others.
    **{
        f"Swimmer-v{version}": {"ent_coef": 0.05, "gamma": 0.9999, "gae_lambda": 0.995, "n_envs": 8, "n_steps": 256}
        for version in (4, 5)
    },
}
