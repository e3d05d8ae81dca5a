"""TODO."""

from __future__ import annotations

import torch

from commands.config import LARGEST, MOST_SEEDS, RunConfig
from drlhp.errors import UserError
from drlhp.labelling.teachers import check_name
from envs import env_info


def validate(config: RunConfig) -> None:
    """Checks what types cannot: raises UserError with one sentence that says the fix."""
    policy, predictor, prefs = config.policy, config.predictor, config.prefs
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda finds no CUDA card that PyTorch can use; give --device cpu.")
    positive = {
        "million_timesteps": policy.million_timesteps,
        "lr": policy.lr,
        "max_kl": policy.max_kl,
        "init_noise_std": policy.init_noise_std,
    }
    for name, number in positive.items():
        if not 0 < number < float("inf"):
            raise UserError(f"--{name} must be a number above 0, not {number}.")
    at_least = {
        "n_envs": (policy.n_envs, 1),
        "n_steps": (policy.n_steps, 1),
        "ppo_epochs": (policy.ppo_epochs, 1),
        "ppo_minibatches": (policy.ppo_minibatches, 1),
        "policy_ckpt_interval": (policy.policy_ckpt_interval, 1),
        "log_interval": (policy.log_interval, 1),
        "eval_episodes": (policy.eval_episodes, 1),
        "lr_zero_million_timesteps": (policy.lr_zero_million_timesteps, 0),
        "ent_coef": (policy.ent_coef, 0),
        "ent_coef_zero_million_timesteps": (policy.ent_coef_zero_million_timesteps, 0),
        "disagreement_bonus": (policy.disagreement_bonus, 0),
        "explore_million_timesteps": (policy.explore_million_timesteps, 0),
        "policy_reset_million_timesteps": (policy.policy_reset_million_timesteps, 0),
        "first_episode_steps": (policy.first_episode_steps, 0),
        "max_prefs": (prefs.max_prefs, 0),
        "n_initial_prefs": (prefs.n_initial_prefs, 0),  # which may come from the former
        "n_initial_rounds": (prefs.n_initial_rounds, 1),
        "max_segs": (prefs.max_segs, 2),
        "clip_steps": (prefs.clip_steps, 1),
        "query_candidates": (prefs.query_candidates, 1),
        "teacher_end_penalty": (prefs.teacher_end_penalty, 0),
        "teacher_equal": (0.0 if prefs.teacher_equal is None else prefs.teacher_equal, 0),
    }
    for name, (value, least) in at_least.items():
        if not least <= value < float("inf"):
            raise UserError(f"--{name} must be {least} or more{' and finite' * (value > least)}, not {value}.")
        if value > LARGEST:
            raise UserError(f"--{name} must be {LARGEST} or less, not {value}.")
    predictor.check("--")
    check_seed(config.seed)
    if prefs.teacher_end_penalty and ":" in prefs.teacher:
        raise UserError(
            "--teacher_end_penalty must be left out with a function as --teacher, since it changes the true reward, "
            "whose place the function takes."
        )
    if round(policy.million_timesteps * 1e6) < 1:
        raise UserError(f"--million_timesteps must be 0.000001, one step, or more, not {policy.million_timesteps}.")
    if 0 < policy.lr_zero_million_timesteps < policy.million_timesteps:
        raise UserError(
            f"the learning rate would be 0 from {policy.lr_zero_million_timesteps:g} million steps on; give "
            f"--lr_zero_million_timesteps {policy.million_timesteps:g} or more, or 0 to keep it constant."
        )
    if policy.policy_reset_million_timesteps >= policy.million_timesteps:
        raise UserError(
            f"--policy_reset_million_timesteps must be below the {policy.million_timesteps:g} million steps of the "
            f"training, not {policy.policy_reset_million_timesteps:g}."
        )
    interval = policy.eval_interval_million_timesteps
    if interval and not 1 <= interval * 1e6 < float("inf"):
        raise UserError(
            "--eval_interval_million_timesteps must be 0.000001, one step, or more, or 0 for no evaluations, not "
            f"{policy.eval_interval_million_timesteps}."
        )
    shares = {
        "gamma": policy.gamma,
        "gae_lambda": policy.gae_lambda,
        "teacher_gamma": prefs.teacher_gamma,
        "teacher_mistake": prefs.teacher_mistake,
        "teacher_skip": prefs.teacher_skip,
    }
    for name, share in shares.items():
        if share is not None and not 0 <= share <= 1:
            raise UserError(f"--{name} must lie between 0 and 1, not {share}.")
    if not config.resume:
        _validate_ensemble(config)
    if isinstance(prefs.wait_for_labels, float) and not 0 <= prefs.wait_for_labels <= 1:
        raise UserError(
            f"--wait_for_labels must be never, initial or a share from 0 to 1, not {prefs.wait_for_labels}."
        )
    if predictor.crop_steps >= prefs.clip_steps:
        raise UserError(
            f"--crop_steps must be below the {prefs.clip_steps} steps of a clip, not {predictor.crop_steps}."
        )
    if predictor.reward_target == "true_return" and (not prefs.synthetic_prefs or ":" in prefs.teacher):
        raise UserError(
            "--reward_target true_return needs the true reward as its teacher; give --synthetic_prefs, and no function "
            "as --teacher."
        )
    if policy.n_envs * policy.n_steps < policy.ppo_minibatches and policy.algo == "ppo":
        raise UserError("--ppo_minibatches must not exceed n_envs * n_steps; lower it or collect more.")
    if policy.algo == "trpo" and env_info(config.env_id).kind == "pixels":
        raise UserError(f"--algo trpo learns from vectors, and {config.env_id} shows pixels; give --algo ppo.")
    if policy.first_episode_steps:
        _validate_first_episodes(config)
    if policy.policy_network == "nature_lstm":
        if env_info(config.env_id).kind != "pixels":
            raise UserError(f"--policy_network nature_lstm reads pixels, and {config.env_id} shows none; leave it out.")
        if policy.demonstrations:
            raise UserError("--demonstrations are imitated step by step; give --policy_network nature with them.")
    if config.run_name is not None and (config.run_name in ("", ".", "..") or "/" in config.run_name):
        raise UserError(f"--run_name must be the plain name of a folder, not '{config.run_name}'.")
    places = {
        "resume": config.resume,
        "load_prefs_dir": prefs.load_prefs_dir,
        "load_reward_predictor_ckpt_dir": predictor.load_reward_predictor_ckpt_dir,
        "load_policy_ckpt_dir": policy.load_policy_ckpt_dir,
        "demonstrations": policy.demonstrations,
    }
    for name, place in places.items():
        if place == "":  # as of a variable of the shell that is not set
            raise UserError(f"--{name} must name a file or folder, not ''; leave it out to do without.")
    if prefs.teacher_beta is not None and not prefs.teacher_beta > 0:
        raise UserError(f"--teacher_beta must be a number above 0, or inf, not {prefs.teacher_beta}.")
    for name in ("demonstrations", "load_policy_ckpt_dir"):
        for forgetting in ("explore_million_timesteps", "policy_reset_million_timesteps"):
            if getattr(policy, name) and getattr(policy, forgetting) and not config.resume:
                raise UserError(f"--{forgetting} makes the policy forget the --{name} that it starts from; give one.")
    if policy.demonstrations and policy.load_policy_ckpt_dir:
        raise UserError("--demonstrations and --load_policy_ckpt_dir both say what the policy starts from; give one.")
    check_name(prefs.teacher)
    config.page.check()
    _validate_stages(config)


def _validate_first_episodes(config: RunConfig) -> None:
    """Episodes that cannot be given up."""
    info, first = env_info(config.env_id), config.policy.first_episode_steps
    if not info.state_size or info.max_episode_frames is None:
        raise UserError(
            f"--first_episode_steps is for bodies in MuJoCo with a time limit, and {config.env_id} is none; leave it "
            "out."
        )
    if first > info.max_episode_frames:
        raise UserError(
            f"--first_episode_steps must not exceed the {info.max_episode_frames} steps of an episode of "
            f"{config.env_id}; give fewer, or 0."
        )
    if config.policy.continuing_episodes:
        raise UserError(
            "--continuing_episodes goes on with the next episode's rewards, so that a body would learn to be given up; "
            "give --first_episode_steps 0 with it."
        )


def check_seed(seed: int) -> None:
    """Raises UserError unless generators of random numbers and environments take it."""
    if not 0 <= seed < MOST_SEEDS:
        raise UserError(f"--seed must be 0 or more, and below 2^62, not {seed}.")


def _validate_ensemble(config: RunConfig) -> None:
    """What asks for disagreement, which one network alone has none of."""
    if config.predictor.ensemble_size > 1:
        return
    if config.prefs.query_selection == "disagreement" and config.prefs.gather_prefs and config.uses_preferences:
        raise UserError("--query_selection disagreement needs an ensemble; give --ensemble_size 3, or random.")
    if config.policy.disagreement_bonus:
        raise UserError("--disagreement_bonus needs an ensemble; give --ensemble_size 3, or leave it out.")


def _validate_stages(config: RunConfig) -> None:
    """Flags that contradict each other or lack what they need."""
    predictor, prefs = config.predictor, config.prefs
    loads_labels = bool(prefs.load_prefs_dir or config.resume)
    if config.mode == "pretrain_reward_predictor" and not loads_labels:
        raise UserError(
            "pretrain_reward_predictor needs labels: give --load_prefs_dir with the folder of a run that has some."
        )
    if predictor.l2 == "adaptive" and not predictor.hold_out and not predictor.bootstraps:
        raise UserError(
            "--l2 adaptive needs labels that were not trained on: leave out --no_hold_out, or give an ensemble with "
            "bootstraps."
        )
    if prefs.n_initial_rounds > 1:
        if not prefs.gather_prefs:
            raise UserError("--n_initial_rounds above 1 needs labels that are asked for; leave out --no_gather_prefs.")
        if config.mode != "train_policy_with_preferences":
            raise UserError(
                "--n_initial_rounds above 1 needs a reward predictor that learns meanwhile, as it does in "
                "train_policy_with_preferences; leave it out here."
            )
        if prefs.query_selection not in ("disagreement", "entropy"):
            raise UserError(
                "--n_initial_rounds above 1 needs pairs that the reward predictor chooses: give --query_selection "
                f"disagreement or entropy, not {prefs.query_selection}."
            )
        if prefs.n_initial_rounds > prefs.labels_to_start():
            raise UserError(
                f"--n_initial_rounds {prefs.n_initial_rounds} must not exceed the labels that training starts with, "
                f"which are {prefs.labels_to_start()}."
            )
    if config.mode == "gather_initial_prefs" and prefs.gather_prefs and prefs.n_initial_prefs < 1:
        raise UserError("--n_initial_prefs must be 1 or more; --no_gather_prefs gathers segments without labels.")
    if config.mode == "train_policy_with_preferences":
        if not prefs.gather_prefs and not (loads_labels or predictor.load_reward_predictor_ckpt_dir):
            raise UserError(
                "--no_gather_prefs leaves nothing to learn from: give --load_reward_predictor_ckpt_dir or "
                "--load_prefs_dir."
            )
        loads = loads_labels or predictor.load_reward_predictor_ckpt_dir
        if prefs.gather_prefs and prefs.synthetic_prefs and prefs.n_initial_prefs < 1 and not loads:
            raise UserError("--n_initial_prefs must be 1 or more, since the policy starts from these labels.")
        if prefs.gather_prefs and prefs.max_prefs < prefs.n_initial_prefs:
            raise UserError(
                f"--max_prefs {prefs.max_prefs} is below --n_initial_prefs {prefs.n_initial_prefs}, so training would "
                "never start; raise the one or lower the other."
            )
