"""Checks what a training run needs before anything of it is made."""

from __future__ import annotations

from pathlib import Path

from a2c.demonstrations import Demonstrations
from a2c.runner import random_segment
from commands.config import RunConfig, gathers
from commands.metrics import check_metrics
from commands.resumed import check_resumed
from commands.trackers import check_tracker
from drlhp.data.comparison import Comparison
from drlhp.errors import UserError
from drlhp.label_server import listen
from drlhp.labelling.teachers import true_rewards
from drlhp.runtime.ray_connection import check_cluster
from drlhp.screens.opening import screen_for
from envs import check_env, env_info, make_vec_env
from pref_db import PrefDB, store_path
from pref_interface import teacher_of


def check_inputs(config: RunConfig) -> None:
    """Raises UserError for what cannot work: environments, stores, teachers, a missing display, a taken port."""
    check_tracker(config.track)
    if config.metrics:
        check_metrics(config.metrics)
    if config.cluster:
        check_cluster(config.actors, "--actors")
    info = env_info(config.env_id)
    longest = (info.max_episode_frames or 0) // info.frame_skip  # agent steps of an episode; 0: unknown
    if config.uses_preferences and 0 < 2 * longest < config.prefs.clip_steps:
        raise UserError(
            f"an episode of {info.env_id} is over after {longest} steps, not half of --clip_steps "
            f"{config.prefs.clip_steps}, so there would be no clips; give {longest} or less."
        )
    if config.mode != "pretrain_reward_predictor":  # which plays none
        rewards_count = not config.uses_preferences or config.prefs.judged_by_reward
        check_env(config.env_id, rewards_count=rewards_count)
    if config.resume:
        check_resumed(config)
    if config.uses_preferences and config.prefs.load_prefs_dir and not config.resume:
        check_labels_to_load(config, Path(config.prefs.load_prefs_dir))
    if config.store and not config.resume:
        from drlhp.data.postgres_copy import check_free  # only who uses it needs its package

        check_free(config.run_path() / "prefs.db", config.store)
    if config.policy.demonstrations and not config.resume and config.mode != "pretrain_reward_predictor":
        Demonstrations.load(Path(config.policy.demonstrations), info)
    if gathers(config) and config.prefs.synthetic_prefs:
        try_teacher(config)
    asks_person = gathers(config) and not config.prefs.synthetic_prefs
    shows_episodes = config.render_episodes and config.mode != "pretrain_reward_predictor"  # which plays none
    if shows_episodes or (asks_person and screen_for(config.prefs.ui) == "window"):
        from drlhp.screens.canvas import INSTEAD, open_display

        open_display("leave out --render_episodes" if shows_episodes else INSTEAD)
    if asks_person and config.prefs.ui == "web":
        listen(config.page.web_host, config.page.web_port).close()
    keeps_segments = config.mode == "gather_initial_prefs" and not gathers(config)
    if asks_person or keeps_segments or shows_episodes:
        make_vec_env(config.env_id, 1, config.seed, n_watched=1).close()  # raises if it cannot draw itself


def check_labels_to_load(config: RunConfig, place: Path) -> None:
    """Raises UserError if the labels at that place are of something else, or too few."""
    db = PrefDB.open(store_path(place), read_only=True)
    n_labels, env_id, length = db.n_labels(), db.env_id, db.segment_length
    db.close()
    if env_id != config.env_id:
        raise UserError(f"{place} holds labels of {env_id}, not of {config.env_id}; load them with {env_id}.")
    if length != config.prefs.clip_steps:
        raise UserError(
            f"{place} holds labels of clips of {length} steps, not of {config.prefs.clip_steps}; load them with "
            f"--clip_steps {length}."
        )
    if n_labels < 2 and not gathers(config):
        raise UserError(
            f"{place} holds {n_labels} labels, too few to learn from; gather some with gather_initial_prefs."
        )


def try_teacher(config: RunConfig) -> None:
    """Raises UserError if the teacher is a function that cannot judge segments of this environment, long and short."""
    teacher = teacher_of(config.prefs, config.seed, n_answers=0)
    if teacher.rewards is true_rewards:
        return
    segment = random_segment(config.env_id, config.seed, config.prefs.clip_steps)
    if segment is not None:
        shorter = segment.crop(0, (len(segment) + 1) // 2)
        teacher.poll(Comparison(segment, shorter, flip=False))
