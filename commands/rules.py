"""The checks of a training run's flags: bounds of each flag, and flags that contradict each other."""

from __future__ import annotations

import numpy as np
import torch

from commands.config import RunConfig
from drlhp.bounds import check
from drlhp.errors import UserError
from drlhp.labelling.teachers import check_name
from envs import env_info


def validate(config: RunConfig) -> None:
    """Checks a run's flags; raises UserError with one sentence that says the fix."""
    for part in (config, config.policy, config.prefs, config.predictor):
        check(part, "--")
    for rule in (
        _check_device,
        _check_places,
        _check_teacher,
        _check_lengths,
        _check_ensemble_of_new_run,
        _check_clips,
        _check_algorithm,
        _check_off_policy,
        _check_first_episodes,
        _check_frames,
        _check_policy_network,
        _check_start,
        _check_actors,
    ):
        rule(config)
    config.page.check()
    for rule in (_check_labels, _check_initial_rounds, _check_number_of_labels):
        rule(config)


def _check_device(config: RunConfig) -> None:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda finds no GPU that PyTorch can use; give --device cpu.")


def _check_actors(config: RunConfig) -> None:
    if config.cluster is None:
        if config.n_actors > 1:
            raise UserError("--n_actors is for actors on a cluster; give --actors ray with it, or leave it out.")
        return
    if config.mode == "pretrain_reward_predictor":
        raise UserError(f"{config.mode} acts in no environment; leave out --actors.")
    if config.synchronous:
        raise UserError("--synchronous runs all parts in one process; leave it out, or leave out --actors.")
    if config.n_actors > config.policy.n_envs:
        raise UserError(
            f"--n_actors must not exceed the {config.policy.n_envs} environments that they share, not "
            f"{config.n_actors}; give fewer, or more --n_envs."
        )


def _check_places(config: RunConfig) -> None:
    if config.run_name is not None and (config.run_name in ("", ".", "..") or "/" in config.run_name):
        raise UserError(f"--run_name must be the plain name of a folder, not '{config.run_name}'.")
    places = {
        "resume": config.resume,
        "load_prefs_dir": config.prefs.load_prefs_dir,
        "load_reward_predictor_ckpt_dir": config.predictor.load_reward_predictor_ckpt_dir,
        "load_policy_ckpt_dir": config.policy.load_policy_ckpt_dir,
        "demonstrations": config.policy.demonstrations,
        "store": config.store,
    }
    for name, place in places.items():
        if place == "":  # the shell's value of a variable that is not set
            raise UserError(f"--{name} must name a file or folder, not ''; leave it out to do without.")
    if config.store and not config.uses_preferences:
        raise UserError("--store is for labels, and this run asks for none; leave it out.")


def _check_teacher(config: RunConfig) -> None:
    prefs = config.prefs
    check_name(prefs.teacher)
    is_function = ":" in prefs.teacher
    if prefs.teacher_end_penalty and is_function:
        raise UserError(
            "--teacher_end_penalty changes the true reward, which a function as --teacher replaces; leave "
            "one out, or give --teacher oracle."
        )
    if config.predictor.reward_target == "true_return" and (not prefs.synthetic_prefs or is_function):
        raise UserError(
            "--reward_target true_return needs the true reward as its teacher; give --synthetic_prefs, and no function "
            "as --teacher."
        )


def _check_lengths(config: RunConfig) -> None:
    policy = config.policy
    if round(policy.million_timesteps * 1e6) < 1:
        raise UserError(f"--million_timesteps must be 0.000001, one step, or more, not {policy.million_timesteps}.")
    if 0 < policy.lr_zero_million_timesteps < policy.million_timesteps:
        raise UserError(
            f"the learning rate would be 0 from {policy.lr_zero_million_timesteps:g} million steps on; give "
            f"--lr_zero_million_timesteps {policy.million_timesteps:g} or more, or 0 to keep it constant."
        )
    n_starts = policy.policy_resets + 1
    if policy.policy_reset_million_timesteps * n_starts >= policy.million_timesteps:
        raise UserError(
            f"--policy_reset_million_timesteps must be below {policy.million_timesteps / n_starts:g}, so that "
            f"{n_starts} starts of the policy take less than all {policy.million_timesteps:g} million steps, "
            f"not {policy.policy_reset_million_timesteps:g}."
        )
    if policy.explore_million_timesteps > policy.million_timesteps and config.trains_policy:
        raise UserError(
            f"--explore_million_timesteps must not exceed the {policy.million_timesteps:g} million steps of the "
            f"training that follows, not {policy.explore_million_timesteps:g}."
        )
    interval = policy.eval_interval_million_timesteps
    if interval and not 1 <= interval * 1e6 < float("inf"):
        raise UserError(
            "--eval_interval_million_timesteps must be 0.000001, one step, or more, or 0 for no evaluations, not "
            f"{policy.eval_interval_million_timesteps}."
        )


def check_ensemble(config: RunConfig) -> None:
    """Raises UserError if a flag needs members that disagree, and there is only one network."""
    if config.predictor.ensemble_size > 1:
        return
    if config.prefs.query_selection == "disagreement" and config.prefs.gather_prefs and config.uses_preferences:
        raise UserError("--query_selection disagreement needs an ensemble; give --ensemble_size 3, or random.")
    if config.policy.disagreement_bonus:
        raise UserError("--disagreement_bonus needs an ensemble; give --ensemble_size 3, or leave it out.")


def _check_ensemble_of_new_run(config: RunConfig) -> None:
    if not config.resume:
        check_ensemble(config)


def _check_clips(config: RunConfig) -> None:
    crop_steps, clip_steps = config.predictor.crop_steps, config.prefs.clip_steps
    if crop_steps >= clip_steps:
        raise UserError(f"--crop_steps must be below the {clip_steps} steps of a clip, not {crop_steps}.")


def _check_algorithm(config: RunConfig) -> None:
    policy = config.policy
    if policy.algo == "ppo" and policy.n_envs * policy.n_steps < policy.ppo_minibatches:
        raise UserError("--ppo_minibatches must not exceed n_envs * n_steps; lower it or collect more.")
    if policy.algo == "trpo" and env_info(config.env_id).kind == "pixels":
        raise UserError(f"--algo trpo learns from vectors, and {config.env_id} shows pixels; give --algo ppo.")


def _check_off_policy(config: RunConfig) -> None:
    if config.policy.algo != "sac":
        return
    info = env_info(config.env_id)
    if info.kind == "pixels" or info.action_bounds is None or not np.isfinite(info.action_bounds).all():
        raise UserError(
            f"--algo sac needs vectors, and continuous actions with bounds, and {config.env_id} has others; give "
            "--algo ppo."
        )
    impossible = {
        "actors": config.cluster is not None,
        "demonstrations": config.policy.demonstrations is not None,
        "disagreement_bonus": config.policy.disagreement_bonus > 0,
        "continuing_episodes": config.policy.continuing_episodes,
        # What explored is rewarded anew by a predictor, and would keep its rewards without one.
        "explore_million_timesteps": config.policy.explore_million_timesteps > 0 and not config.uses_preferences,
    }
    for name in (name for name, given in impossible.items() if given):
        raise UserError(f"--{name} does not go with --algo sac; leave it out, or give --algo ppo.")


def _check_frames(config: RunConfig) -> None:
    if config.policy.all_frames and env_info(config.env_id).all_frames is None:
        raise UserError(f"--all_frames is about Atari's frames, and {config.env_id} has none; leave it out.")


def _check_first_episodes(config: RunConfig) -> None:
    first = config.policy.first_episode_steps
    if not first:
        return
    info = env_info(config.env_id)
    if not info.state_size or info.max_episode_frames is None:
        raise UserError(
            f"--first_episode_steps needs a MuJoCo body with a time limit, and {config.env_id} is none; leave it out."
        )
    if first > info.max_episode_frames:
        raise UserError(
            f"--first_episode_steps must not exceed the {info.max_episode_frames} steps of an episode of "
            f"{config.env_id}; give fewer, or 0."
        )
    if config.policy.continuing_episodes:
        raise UserError(
            "--continuing_episodes adds the next episode's rewards, so a body would learn to have its episodes given "
            "up; give --first_episode_steps 0 with it."
        )


def _check_policy_network(config: RunConfig) -> None:
    if config.policy.policy_network != "nature_lstm":
        return
    if env_info(config.env_id).kind != "pixels":
        raise UserError(f"--policy_network nature_lstm reads pixels, and {config.env_id} shows none; leave it out.")
    if config.policy.demonstrations:
        raise UserError("--demonstrations are imitated step by step; give --policy_network nature with them.")


def _check_start(config: RunConfig) -> None:
    policy = config.policy
    for name in ("demonstrations", "load_policy_ckpt_dir"):
        for forgetting in ("explore_million_timesteps", "policy_reset_million_timesteps"):
            if getattr(policy, name) and getattr(policy, forgetting) and not config.resume:
                raise UserError(f"--{forgetting} makes the policy forget the --{name} that it starts from; give one.")
    if policy.demonstrations and policy.load_policy_ckpt_dir:
        raise UserError("--demonstrations and --load_policy_ckpt_dir both say what the policy starts from; give one.")


def _loads_labels(config: RunConfig) -> bool:
    return bool(config.prefs.load_prefs_dir or config.resume)


def _check_labels(config: RunConfig) -> None:
    predictor = config.predictor
    if config.mode == "pretrain_reward_predictor" and not _loads_labels(config):
        raise UserError(
            "pretrain_reward_predictor needs labels: give --load_prefs_dir with the folder of a run that has some."
        )
    if predictor.l2 == "adaptive" and not predictor.hold_out and not predictor.bootstraps:
        raise UserError(
            "--l2 adaptive needs labels that are not trained on: leave out --no_hold_out, or give an ensemble with "
            "bootstraps."
        )


def _check_initial_rounds(config: RunConfig) -> None:
    prefs = config.prefs
    if prefs.n_initial_rounds == 1:
        return
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
            f"--n_initial_rounds {prefs.n_initial_rounds} must not exceed the {prefs.labels_to_start()} labels that "
            "training starts with."
        )


def _check_number_of_labels(config: RunConfig) -> None:
    prefs = config.prefs
    if config.mode == "gather_initial_prefs" and prefs.gather_prefs and prefs.n_initial_prefs < 1:
        raise UserError("--n_initial_prefs must be 1 or more; --no_gather_prefs gathers segments without labels.")
    if config.mode != "train_policy_with_preferences":
        return
    loads = _loads_labels(config) or config.predictor.load_reward_predictor_ckpt_dir
    if not prefs.gather_prefs and not loads:
        raise UserError(
            "--no_gather_prefs leaves nothing to learn from: give --load_reward_predictor_ckpt_dir or --load_prefs_dir."
        )
    if prefs.gather_prefs and prefs.synthetic_prefs and prefs.n_initial_prefs < 1 and not loads:
        raise UserError("--n_initial_prefs must be 1 or more, since the policy starts from these labels.")
    if prefs.gather_prefs and prefs.max_prefs < prefs.n_initial_prefs:
        raise UserError(
            f"--max_prefs {prefs.max_prefs} is below --n_initial_prefs {prefs.n_initial_prefs}, so training would "
            "never start; raise the one or lower the other."
        )
