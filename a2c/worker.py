"""The policy's process: collects rollouts, rewards them, updates the policy, and hands segments on."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from a2c.acting import ActingPolicy
from a2c.config import PolicyConfig
from a2c.crew import NO_FOLLOWERS, Arena, Cluster, Crew, CrewBroken, Followers
from a2c.demonstrations import Demonstrations, clone
from a2c.environments import make_groups
from a2c.evaluation import Evaluator, training_seed
from a2c.exploration import StateEntropy
from a2c.follower import Shared
from a2c.learner import Learner, RolloutLearner, new_policy
from a2c.model import Policy
from a2c.remote import RemoteSpec
from a2c.restarts import Restarts
from a2c.rewards import Rewarder, RewarderSpec, Rewards, disagreement_bonus, predicted_rewards, true_rewards
from a2c.runner import Rollout, Runner
from a2c.sac import ReplayLearner
from a2c.saved import Course, PolicyCheckpoints
from a2c.squashed import SquashedPolicy
from a2c.starts import Starts
from a2c.telemetry import Telemetry
from drlhp.errors import naming
from drlhp.networks.device import CPU
from drlhp.runtime.channels import Channels, Episode, Report, offer
from drlhp.runtime.curves import Curves
from drlhp.runtime.pulse import doing
from drlhp.runtime.snapshot import restore_kept
from drlhp.runtime.turns import StopFlag
from envs import EnvError, EnvInfo, env_info

EPISODES_IN_VAIN = 1000  # before the first label; if so many gave no segment, later ones will not either
NOTICED_SECONDS = 10.0  # ample time for the main process to see that a child has died


@dataclass(frozen=True)
class WorkerSpec:
    """All that the policy's process works with, besides the channels."""

    env_id: str
    config: PolicyConfig
    run_dir: Path
    seed: int
    rewarder: RewarderSpec | None = None  # this process's copy of the reward predictor; None: learns the true reward
    n_watched: int = 0  # environments whose colour frames are kept for the clips
    render_episodes: bool = False  # send whole episodes of the first environment
    resume: bool = False
    clip_steps: int | None = None  # None: the environment's default
    judged_by_reward: bool = True  # the teacher is the true reward; else ids of segments do not depend on it
    end_penalty: float = 0.0  # taken off the true reward of the step that ends a game, in segments alone
    device: torch.device = CPU
    n_threads: int = 1  # CPU threads of the arithmetic in this process
    followers: Followers = NO_FOLLOWERS
    cluster: Cluster | None = None  # whose actors have all environments
    run_id: str = ""  # goes into the checkpoints
    remembers: bool = False  # keep what a snapshot needs beside the weights
    began_at: int | None = None  # updates after which the run to be restored made its environments

    @property
    def n_shown(self) -> int:
        """The number of environments that draw what people see; bodies are drawn later, from their states."""
        n_shown = 0 if env_info(self.env_id).state_size else max(self.n_watched, int(self.render_episodes))
        return min(self.config.n_envs, n_shown)


def crew_of(spec: WorkerSpec, policy: ActingPolicy, shared: Shared, stop: StopFlag) -> Crew:
    """Returns the other processes: those that share the work on this machine, or actors on a cluster."""
    if spec.cluster is None:
        return Crew(spec.followers.links, shared.gradients)
    from a2c.ray_crew import RayCrew  # without actors there nothing of Ray is imported

    assert isinstance(policy, Policy)

    actors = RemoteSpec(
        spec.env_id,
        spec.config,
        slice(0, spec.config.n_envs),
        n_shown=spec.n_shown,
        torch_version=torch.__version__,
    )
    return RayCrew(spec.cluster, actors, policy, shared.rollout, stop)


def learner_of(
    info: EnvInfo, config: PolicyConfig, policy: ActingPolicy, crew: Crew, rewarder: Rewarder | None
) -> Learner:
    """Returns the learner for this kind of policy."""
    if isinstance(policy, SquashedPolicy):
        return ReplayLearner(info, config, policy, rewarder)
    assert isinstance(policy, Policy)
    return RolloutLearner(info, config, policy, crew)


class PolicyWorker:
    """One `step` is one rollout and, once there are rewards to learn from, one update.

    Without a rewarder the policy learns from the true reward. With one, it only gathers segments until the first
    weights are published. Evaluations come before the first update, and after those that reach a multiple of the
    interval or the end.
    """

    KEPT = (
        *("began_at", "steps", "updates", "dropped_segments", "steps_to_explore"),
        *("learner", "starts", "rewarder", "explorer", "restarts", "runner"),
    )

    def __init__(self, spec: WorkerSpec, channels: Channels) -> None:
        self.spec, self.config, self.channels = spec, spec.config, channels
        self.rewarder = spec.rewarder.build() if spec.rewarder else None
        torch.manual_seed(spec.seed)
        info = env_info(spec.env_id)
        self.info = info if spec.clip_steps is None else replace(info, segment_length=spec.clip_steps)
        self.policy = new_policy(self.info, self.config, spec.device)
        arena = Arena(spec.followers.memory, pinned=spec.device.type == "cuda")
        size = len(spec.followers.links) + 1
        shared = Shared.lay_out(self.policy, spec.env_id, self.config, arena, size, leads=True)
        self.crew = crew_of(spec, self.policy, shared, channels.stop)
        self.learner = learner_of(self.info, self.config, self.policy, self.crew, self.rewarder)
        self.starts = Starts(self.info, self.config, self.learner, self.rewarder)
        place, env_id = spec.run_dir / "policy", self.info.env_id
        self.checkpoints = PolicyCheckpoints(
            place, env_id, self.config, self.learner, self.starts, self.rewarder, spec.run_id
        )
        course = self.checkpoints.load(resume=spec.resume)
        self.steps, self.updates, self.dropped_segments = course.steps, course.updates, 0
        channels.agent_steps.value = self.steps
        self.max_steps = round(self.config.million_timesteps * 1e6)
        # Not saved: a run that was stopped before its first update on rewards explores anew.
        self.steps_to_explore = 0 if self.updates else round(self.config.explore_million_timesteps * 1e6)
        self.explorer = StateEntropy(spec.seed)
        self.restarts = Restarts.of(self.config, self.info)
        self.curves = Curves(spec.run_dir, "a2c")
        if self.config.demonstrations and not self.updates and spec.began_at is None:
            self._imitate(Path(self.config.demonstrations))
        self.began_at = self.updates if spec.began_at is None else spec.began_at
        self.runner = self._begin_acting(shared.rollout, course)
        self.evaluator = Evaluator(self.info, self.config, spec.run_dir)
        self.telemetry = Telemetry(
            channels, self.curves, steps=self.steps, max_steps=self.max_steps, predicts=self.rewarder is not None
        )

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a snapshot; the speeds are measured from there."""
        restore_kept(self, state)
        for pace in (self.telemetry.report_pace, self.telemetry.curve_pace):
            pace.mark(self.steps)

    def _imitate(self, place: Path) -> None:
        """Starts the policy as an imitation of recorded play, and reports how far that is."""

        def report(epoch: int, log_probability: float) -> bool:
            self.channels.reports.put(Report("demonstrations", {"epoch": epoch, "log_probability": log_probability}))
            self.curves.add({"demonstrations/held_out_log_probability": log_probability}, epoch)
            return not self.channels.stop.is_set()

        shown, normalises = Demonstrations.load(place, self.info), self.config.normalise_pixels
        assert isinstance(self.policy, Policy)
        clone(self.policy, shown, seed=self.spec.seed, normalise_pixels=normalises, report=report)

    def _begin_acting(self, rollout: Rollout, course: Course) -> Runner:
        """Starts the environments of the whole crew, and counts their episodes on from where the course was."""
        spec, config = self.spec, self.config
        seed = training_seed(spec.seed, self.began_at)  # a resumed run goes on with other episodes
        self.crew.begin(seed)
        envs = []
        if spec.cluster is None:  # else its actors have all
            size, n_shown = self.crew.size, spec.n_shown
            envs = make_groups(spec.env_id, config, spec.device, self.info, crew_size=size, seed=seed, n_shown=n_shown)
        if envs and spec.device.type == "cuda":  # then the update and the reward predictor need no second transfer
            self.policy.acted_on = deque(maxlen=config.n_steps * len(envs))
        elif envs and config.algo == "a2c":  # its one update is by the policy that acted
            assert isinstance(self.policy, Policy)
            self.policy.keep(config.n_steps, envs[0].num_envs)
        runner = Runner(
            envs,
            self.info,
            self.policy,
            rollout,
            seed,
            watch=spec.n_watched > 0,
            record=spec.render_episodes,
            crew=self.crew,
            end_penalty=spec.end_penalty,
            judged_by_reward=spec.judged_by_reward,
            remembers=spec.remembers,
        )
        self.crew.wait()
        runner.finished_returns.extend(course.finished_returns)
        runner.n_episodes, runner.true_reward_total = course.n_episodes, course.true_reward_total
        return runner

    @property
    def _learned_all(self) -> bool:
        return self.steps >= self.max_steps

    @property
    def finished(self) -> bool:
        """Whether the policy has learned from all steps, and was evaluated after them."""
        return self._learned_all and not self.evaluator.is_due(self.steps, last=True)

    def step(self) -> bool:
        """Collects a rollout and learns from it; returns False if there was nothing to do but wait.

        Takes the policy's turn: once for the rollout and its update, and for each step of an evaluation.
        """
        training = self.rewarder is None or self.rewarder.trained
        if training or self.steps:
            self.evaluate_if_due()
        if self._learned_all or self.channels.stop.is_set():
            # Resumed only for the last evaluation, or stopped during one, which a resumed run begins anew.
            return True
        if training and (self.channels.pause.is_set() or self.channels.behind.is_set()):
            return False  # too many questions wait for an answer, or too many labels for the trainer
        with self.channels.turns.policy():
            worked = self._collect_and_learn(training)
        if training:
            self.evaluate_if_due()
        return worked

    def _collect_and_learn(self, training: bool) -> bool:
        if self.steps_to_explore > 0:
            self._explore()
            return True
        if not training and self.channels.segments.full():
            return False  # the teacher has all the clips it can use
        if training and self.rewarder is not None:
            self.rewarder.refresh()
        rollout, episodes = self._collect(values_count=training)
        for episode in episodes:
            offer(self.channels.episodes, episode)
        self.learner.observe(rollout, "pixels")
        observations = self.learner.observations(rollout)
        rewards = self._rewards(rollout, observations) if training else None
        if self.rewarder is not None:
            self._hand_on_segments(rewards.by_member if rewards else None)
        if rewards is not None:
            self._learn(rollout, rewards.learned_from, observations)
        self.learner.observe(rollout, "vector")
        self.telemetry.report(self.runner, steps=self.steps, dropped_segments=self.dropped_segments, training=training)
        return True

    def _collect(self, *, values_count: bool) -> tuple[Rollout, list[Episode]]:
        """Returns the next rollout with the recorded episodes that it completed, and decides which to give up.

        Args:
            values_count: the critic has learned enough to judge episodes.
        """
        if self.restarts is None:
            return self.runner.collect()
        rollout, episodes = self.runner.collect(self.restarts.given_up)
        if values_count:
            values, last = map(self.learner.values, (rollout.values, rollout.last_values))
            self.restarts.judge(rollout.valid, values, last, self.learner.units.deviation)
        else:
            self.restarts.wait(rollout.valid)
        return rollout, episodes

    def _rewards(self, rollout: Rollout, observations: torch.Tensor) -> Rewards:
        """Returns the rewards that the policy learns from."""
        if self.rewarder is None:
            return true_rewards(rollout, self.info)
        bonus = disagreement_bonus(self.config, self.steps, self.max_steps)
        with self.runner.stopwatch.part("reward predictor"):
            return predicted_rewards(self.rewarder, rollout, observations, self.info, bonus=bonus)

    def _hand_on_segments(self, member_rewards: np.ndarray | None) -> None:
        """Offers the rollout's segments to the teacher; raises EnvError if no episode is long enough for one."""
        segments = self.runner.cut(self.steps, member_rewards)
        self.dropped_segments += sum(not offer(self.channels.segments, segment) for segment in segments)
        cutter = self.runner.cutter
        needs_some = member_rewards is None and not self.channels.n_labels.value
        if cutter.n_episodes >= EPISODES_IN_VAIN and not cutter.n_cut and needs_some:
            raise EnvError(
                f"none of {cutter.n_episodes} episodes of {self.info.env_id} lasted for half of --clip_steps "
                f"{self.info.segment_length}, so there would be no clips; start a new run with fewer."
            )

    def _learn(self, rollout: Rollout, rewards: np.ndarray, observations: torch.Tensor) -> None:
        """Updates the policy once on the rollout with these rewards (T, N), counts, reports and saves."""
        config = self.learner.scheduled(self.steps)
        with self.runner.stopwatch.part("update"):
            losses = self.learner.update(rollout, rewards, observations, config)
        self.starts.see(rollout, observations, rewards, self.steps)
        steps_before = self.steps
        self.steps += rollout.n_decisions
        self.updates += 1
        if turn := self.starts.turn(steps_before, self.steps):  # the environments go on where they are
            self.restarts = Restarts.of(self.config, self.info)
            self.telemetry.turned(turn)
        self.channels.agent_steps.value = self.steps
        self.telemetry.learned(
            self.runner,
            rewards,
            losses,
            config,
            steps=self.steps,
            updates=self.updates,
            dropped_segments=self.dropped_segments,
        )
        if self.checkpoints.is_due(self.updates):
            self.save()

    def _explore(self) -> None:
        """Collects one rollout and learns to reach states that are new; its steps do not count as training."""
        rollout, _ = self._collect(values_count=False)
        self.learner.observe(rollout, "pixels")
        observations = self.learner.observations(rollout)
        rewards = self.explorer.rewards(observations).reshape(rollout.rewards.shape) * rollout.valid
        with self.runner.stopwatch.part("update"):
            config = self.learner.scheduled(self.steps)
            self.learner.update(rollout, rewards, observations, config, exploring=True)
        self.learner.observe(rollout, "vector")
        self.steps_to_explore -= rollout.n_decisions
        self.telemetry.explored(self.steps_to_explore, steps=self.steps)

    def evaluate_if_due(self) -> None:
        """Evaluates the policy as it is now, and reports the beginning and the result."""
        if not self.evaluator.is_due(self.steps, last=self._learned_all):
            return
        began = time.monotonic()
        self.telemetry.evaluation_begins(self.steps)
        played = self.evaluator.evaluate(self.policy, self.channels, self.steps)
        if played is not None:  # else the run is being stopped
            film = self.evaluator.film()
            self.telemetry.evaluated(played, film, steps=self.steps, seconds=time.monotonic() - began)

    def save(self) -> Path:
        """Writes a checkpoint of the policy."""
        r = self.runner
        course = Course(self.steps, self.updates, list(r.finished_returns), r.n_episodes, r.true_reward_total)
        return self.checkpoints.save(course)

    def close(self) -> None:
        """Saves what was learned and ends the environments."""
        if self.updates and self.spec.run_dir.is_dir():  # else the main process says that it is gone
            self.save()
        self.crew.close()
        for actor in self.runner.actors:
            actor.env.close()
        self.evaluator.close()
        self.curves.close()


def run_worker(channels: Channels, spec: WorkerSpec) -> None:
    """Body of the policy's process: steps until told to stop or done."""
    # Threads that meet after each layer cost more than the small networks of vectors take.
    torch.set_num_threads(spec.n_threads if env_info(spec.env_id).kind == "pixels" else 1)
    worker = PolicyWorker(spec, channels)
    try:
        while not channels.stop.is_set() and not worker.finished:
            with doing("a step of the policy"), naming(spec.run_dir):
                if not worker.step():
                    channels.stop.wait(0.05)
    except CrewBroken:  # the main process knows why
        channels.stop.wait(NOTICED_SECONDS)
        if not channels.stop.is_set():
            raise
    finally:
        worker.close()
