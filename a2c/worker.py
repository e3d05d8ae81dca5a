"""The policy's process: collects rollouts, rewards them, updates the policy, and hands segments on."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from a2c.config import PolicyConfig
from a2c.crew import ALONE, Arena, Crew, CrewBroken, share
from a2c.demonstrations import Demonstrations, clone
from a2c.evaluation import Evaluator
from a2c.exploration import StateEntropy
from a2c.follower import Shared
from a2c.model import Policy
from a2c.restarts import Restarts
from a2c.returns import ValueUnits, advantages, continuing_advantages
from a2c.runner import Rollout, Runner
from a2c.trpo import trpo_update
from a2c.update import Batch, a2c_update, make_optimizer, ppo_update
from drlhp.errors import UserError
from drlhp.networks.device import CPU, to_device
from drlhp.runtime import checkpoint
from drlhp.runtime.channels import Channels, Episode, Report, offer
from drlhp.runtime.machine import n_cores
from envs import EnvError, EnvInfo, env_info, make_vec_env
from reward_predictor import DIVERGED

UPDATES = {"a2c": a2c_update, "ppo": ppo_update, "trpo": trpo_update}
REPORT_SECONDS = 1.0
EPISODES_IN_VAIN = 1000  # before the first label; if none of so many gave a segment, none will
NOTICED_SECONDS = 10.0  # ample for the main process to see that a child has died


class Rewarder(Protocol):
    """What the worker needs of a reward predictor: its own copy, with weights that arrive on the board."""

    normaliser: tuple[Tensor, Tensor] | None  # what outlasts new weights, and so belongs into a checkpoint

    @property
    def trained(self) -> bool:
        """Whether weights were ever published."""

    def refresh(self) -> int:
        """Takes over the newest weights; returns how many times weights were published (0: none yet)."""

    def member_rewards(self, observations: Tensor, actions: Tensor) -> np.ndarray:
        """(B, ...), (B,) -> (members, B) rewards, each member's normalised by itself."""

    def in_own_measure(self, rewards: np.ndarray) -> np.ndarray:
        """(members, ...) normalised rewards -> as the members gave them, which is how they compare segments."""


class RewarderSpec(Protocol):
    """Builds the copy in the process that uses it."""

    def build(self) -> Rewarder: ...


class PolicyWorker:
    """One `step` is one rollout and, once there are rewards to learn from, one update.

    Without a rewarder the policy learns from the true reward. With one, it only gathers segments until the first
    weights are published. Evaluations come before the first update, and after those that reach a multiple of the
    interval or the end.
    """

    def __init__(
        self,
        env_id: str,
        config: PolicyConfig,
        rewarder: Rewarder | None,
        channels: Channels,
        run_dir: Path,
        *,
        seed: int,
        n_watched: int,
        render_episodes: bool,
        resume: bool,
        clip_steps: int | None = None,
        end_penalty: float = 0.0,
        device: torch.device = CPU,
        links: Sequence[Connection] = (),
        memory: Any = None,
    ) -> None:
        torch.manual_seed(seed)
        self.config, self.rewarder, self.channels, self.run_dir = config, rewarder, channels, run_dir
        self.info: EnvInfo = env_info(env_id)
        if clip_steps is not None:
            self.info = replace(self.info, segment_length=clip_steps)
        self.policy = self._new_policy(device)
        has_card = device.type == "cuda"
        arena = Arena(memory, pinned=has_card)
        shared = Shared.lay_out(self.policy, env_id, config, arena, len(links) + 1, leads=True)
        self.crew = Crew(links, shared.gradients)
        self.optimizer = make_optimizer(self.policy, config)
        self.steps, self.updates, self.dropped_segments = 0, 0, 0
        self.max_steps = round(config.million_timesteps * 1e6)
        self.units = ValueUnits()  # those of rewards, but where vectors are learned from
        returns, n_episodes, true_reward_total = self._load(resume)
        # Not saved: what was stopped before the first update on rewards begins anew.
        self.steps_to_explore = 0 if self.updates else round(config.explore_million_timesteps * 1e6)
        self.explorer = StateEntropy(seed)
        self.restarts = self._new_restarts()
        self._writer: Any = None
        if config.demonstrations and not self.updates:
            self._imitate(Path(config.demonstrations), seed)
        env_seed = seed + 1_000_003 * self.updates  # a resumed run goes on with other episodes
        n_shown = 0 if self.info.state_size else min(config.n_envs, max(n_watched, int(render_episodes)))
        self.crew.order("begin", [env_seed] * self.crew.size)
        # Emulators need no threads of their own where there are other processes.
        n_envs = share(config.n_envs, self.crew.size, 0).stop
        n_threads = int(self.crew.size > 1)
        # While a card decides for one half of them, the others are at work.
        n_groups = 2 if has_card and self.info.kind == "pixels" and n_envs > 1 else 1
        if n_groups > 1:
            n_threads = max(1, n_cores() // n_groups)
        groups = [share(n_envs, n_groups, i) for i in range(n_groups)]
        if has_card:  # then the update and the reward predictor need no second transfer
            self.policy.acted_on = deque(maxlen=config.n_steps * n_groups)
        elif config.algo == "a2c":  # its one update is by the policy that acted
            self.policy.keep(config.n_steps, n_envs)
        envs = [
            make_vec_env(
                env_id,
                group.stop - group.start,
                env_seed + group.start,
                0 if i else min(n_shown, group.stop),
                n_threads,
                whole_games=config.whole_games,
            )
            for i, group in enumerate(groups)
        ]
        self.runner = Runner(
            envs,
            self.info,
            self.policy,
            shared.rollout,
            env_seed,
            watch=n_watched > 0,
            record=render_episodes,
            crew=self.crew,
            end_penalty=end_penalty,
        )
        self.crew.results()
        self.runner.finished_returns.extend(returns)
        self.runner.n_episodes, self.runner.true_reward_total = n_episodes, true_reward_total
        self.evaluator = Evaluator(self.info, config, seed, run_dir)
        self._save_by = time.monotonic() + checkpoint.MAX_SECONDS
        self._log_sums: defaultdict[str, float] = defaultdict(float)
        self._n_summed = 0  # updates in them, few at first if the run was resumed between two points
        self.predicted_reward = math.nan  # per step, mean since the last point of the curves
        self._log_mark = (time.monotonic(), self.steps)
        self._report_mark = (time.monotonic(), self.steps)

    def _new_policy(self, device: torch.device) -> Policy:
        policy = Policy(self.info, self.config.policy_network, device)
        if policy.log_std is not None:
            torch.nn.init.constant_(policy.log_std, math.log(self.config.init_noise_std))
        return policy

    def _new_restarts(self) -> Restarts | None:
        first = self.config.first_episode_steps
        return Restarts(self.config.n_envs, max(first, self.info.segment_length)) if first else None

    def _begin_anew(self) -> None:
        """Forgets all that the policy has learned; its environments go on where they are."""
        self.policy.load_state_dict(self._new_policy(self.policy.device).state_dict())
        self.optimizer = make_optimizer(self.policy, self.config)
        self.units = ValueUnits()
        self.restarts = self._new_restarts()

    def _imitate(self, place: Path, seed: int) -> None:
        """Starts the policy as an imitation of recorded play, and says how far that is."""

        def report(epoch: int, log_probability: float) -> bool:
            self.channels.reports.put(Report("demonstrations", {"epoch": epoch, "log_probability": log_probability}))
            self._events().add_scalar("demonstrations/held_out_log_probability", log_probability, epoch)
            return not self.channels.stop.is_set()

        shown = Demonstrations.load(place, self.info)
        clone(self.policy, shown, seed=seed, normalise_pixels=self.config.normalise_pixels, report=report)

    @property
    def _learned_all(self) -> bool:
        return self.steps >= self.max_steps

    @property
    def finished(self) -> bool:
        return self._learned_all and not self.evaluator.is_due(self.steps, last=True)

    def step(self) -> bool:
        """Collects a rollout and learns from it; False if there was nothing to do but wait.

        Takes the policy's turn, for the rollout and its update as a whole, for an evaluation step by step.
        """
        training = self.rewarder is None or self.rewarder.trained
        if training or self.steps:
            self._evaluate_if_due()
        if self._learned_all or self.channels.stop.is_set():
            # Resumed for nothing but the last evaluation, or stopped in one, which a resumed run begins anew.
            return True
        if training and self.channels.pause.is_set():
            return False  # too many questions wait for an answer
        with self.channels.turns.policy():
            worked = self._collect_and_learn(training)
        if training:
            self._evaluate_if_due()
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
        self._observe(rollout, "pixels")
        observations = self._observations(rollout)
        rewards, in_own_measure = rollout.rewards, None
        if self.rewarder is None and not np.isfinite(rewards).all():
            raise EnvError(f"a reward of {self.info.env_id} is NaN or infinity: mend the environment.")
        if self.rewarder is not None and training:
            with self.runner.stopwatch.part("reward predictor"):
                actions = to_device(self.info.carried_out(rollout.flat_actions()), self.policy.device)
                predicted = self.rewarder.member_rewards(observations, actions)
            predicted = predicted.reshape(-1, *rollout.rewards.shape)
            rewards = self._reward(predicted) * rollout.valid
            if not np.isfinite(rewards).all():
                raise UserError(DIVERGED)
            in_own_measure = self.rewarder.in_own_measure(predicted)
        if self.rewarder is not None:
            segments = self.runner.cut(self.steps, in_own_measure)
            self.dropped_segments += sum(not offer(self.channels.segments, segment) for segment in segments)
            cutter = self.runner.cutter
            if cutter.n_episodes >= EPISODES_IN_VAIN and not (cutter.n_cut or training or self.channels.n_labels.value):
                raise EnvError(
                    f"none of {cutter.n_episodes} episodes of {self.info.env_id} lasted for half of --clip_steps "
                    f"{self.info.segment_length}, so there would be no clips; start a new run with fewer."
                )
        if training:
            self._learn(rollout, rewards, observations)
        self._observe(rollout, "vector")
        self._report(training)
        return True

    def _collect(self, *, values_count: bool) -> tuple[Rollout, list[Episode]]:
        """The next rollout, and who is given up after it, by what the critic says if that counts yet."""
        if self.restarts is None:
            return self.runner.collect()
        rollout, episodes = self.runner.collect(self.restarts.given_up)
        if values_count:
            self.restarts.judge(rollout.valid, rollout.values, rollout.last_values, self.units)
        else:
            self.restarts.wait(rollout.valid)
        return rollout, episodes

    def _observe(self, rollout: Rollout, kind: str) -> None:
        """Takes observations of this kind for the statistics by which the policy reads them.

        Vectors after learning: what is updated must be the policy that acted, which reads by the statistics until now.
        """
        if self.config.normalise_pixels and self.info.kind == kind:
            self.policy.observe(rollout.flat_observations())

    def _explore(self) -> None:
        """One rollout and update for the sake of states that are new; these steps count as no training."""
        rollout, _ = self._collect(values_count=False)
        self._observe(rollout, "pixels")
        observations = self._observations(rollout)
        rewards = self.explorer.rewards(observations).reshape(rollout.rewards.shape) * rollout.valid
        self._update(rollout, rewards, observations, self._scheduled())
        self._observe(rollout, "vector")
        self.steps_to_explore -= rollout.n_decisions
        now = time.monotonic()
        if now - self._report_mark[0] >= REPORT_SECONDS or self.steps_to_explore <= 0:
            self.channels.reports.put(Report("exploration", {"steps_left": float(max(0, self.steps_to_explore))}))
            self._report_mark = self._log_mark = (now, self.steps)

    def _reward(self, predicted: np.ndarray) -> np.ndarray:
        """(members, T, N) -> (T, N): the members' mean, and a bonus where they disagree (RUNE, Liang et al. 2022)."""
        weight = self.config.disagreement_bonus * (1 - self.steps / self.max_steps)
        reward: np.ndarray = predicted.mean(0)
        return reward + np.float32(weight) * predicted.std(0) if weight > 0 else reward

    def _evaluate_if_due(self) -> None:
        """Evaluates the policy as it is now, and tells the main process of the beginning and of the result."""
        if not self.evaluator.is_due(self.steps, last=self._learned_all):
            return
        began = time.monotonic()
        self.channels.reports.put(Report("evaluation", {"steps": self.steps, "running": 1}))
        played = self.evaluator.evaluate(self.policy, self.channels, self.steps)
        if played is None:
            return  # the run is being stopped
        values: dict[str, float] = {"steps": self.steps, "running": 0}
        for policy, episodes in played.items():
            statistics = episodes.statistics()
            values |= {f"{policy}_{name}": value for name, value in statistics.items()}
            self._events().add_scalar(f"evaluation/{policy}_mean", statistics["mean"], self.steps)
        self.channels.reports.put(Report("evaluation", values))
        # The speeds are those of the training, so its clocks stood still.
        took = time.monotonic() - began
        self._report_mark = (self._report_mark[0] + took, self._report_mark[1])
        self._log_mark = (self._log_mark[0] + took, self._log_mark[1])

    def _learn(self, rollout: Rollout, rewards: np.ndarray, observations: Tensor) -> None:
        """One update on the rollout with these rewards (T, N), counted and told."""
        config = self._scheduled()
        losses = self._update(rollout, rewards, observations, config)
        steps_before = self.steps
        self.steps += rollout.n_decisions
        self.updates += 1
        if steps_before < round(config.policy_reset_million_timesteps * 1e6) <= self.steps:
            self._begin_anew()
        self.channels.agent_steps.value = self.steps
        self._log(rollout, rewards, losses, config)
        if self.updates % config.policy_ckpt_interval == 0 or time.monotonic() > self._save_by:
            self.save()

    def _update(
        self, rollout: Rollout, rewards: np.ndarray, observations: Tensor, config: PolicyConfig
    ) -> dict[str, float]:
        """One update on the rollout with these rewards (T, N); returns its losses."""
        with self.runner.stopwatch.part("update"):
            values = self.units.values(rollout.values)
            gained = self._advantages(rollout, rewards, values, self.units.values(rollout.last_values))
            # Pixels' rewards are clipped or predicted to a scale already, as the paper's settings for Atari expect;
            # those of exploring are of another than those to come.
            if self.info.kind == "vector" and self.steps_to_explore <= 0:
                self.units.observe((gained + values)[rollout.valid])
            rollout.advantages[:] = gained / self.units.deviation
            rollout.returns[:] = self.units.targets(gained + values)
            batch = Batch.of(rollout, observations, self.policy.device)
            # A minibatch of vectors is done sooner than the others could be told of their shares.
            crew = self.crew if self.info.kind == "pixels" else ALONE
            return UPDATES[config.algo](self.policy, self.optimizer, batch, config, crew)

    def _advantages(
        self, rollout: Rollout, rewards: np.ndarray, values: np.ndarray, last_values: np.ndarray
    ) -> np.ndarray:
        """(T, N) advantages for these rewards and values (T, N), and values (N,) of what came last."""
        discounts = {"gamma": self.config.gamma, "gae_lambda": self.config.gae_lambda}
        if self.config.continuing_episodes:
            return continuing_advantages(rewards, values, last_values, rollout.valid, **discounts)
        return advantages(rewards, values, last_values, rollout.terminated, rollout.truncated, **discounts)

    def _observations(self, rollout: Rollout) -> Tensor:
        """(T * N, ...) on which the policy acted; a card has them since then."""
        if self.policy.acted_on:
            return torch.cat(tuple(self.policy.acted_on))
        return torch.from_numpy(rollout.flat_observations())

    def _scheduled(self) -> PolicyConfig:
        """The settings of this moment, which the optimiser takes over: linear decay, as in the paper (appendix A.2)."""

        def falling(start: float, zero_million_timesteps: float) -> float:
            zero_at = zero_million_timesteps * 1e6
            return start * (max(0.0, 1 - self.steps / zero_at) if zero_at else 1.0)

        config = self.config
        lr = falling(config.lr, config.lr_zero_million_timesteps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return replace(config, lr=lr, ent_coef=falling(config.ent_coef, config.ent_coef_zero_million_timesteps))

    def _events(self) -> Any:
        """The writer of the TensorBoard curves, made when it is first needed."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # slow to import: only where it is used

            self._writer = SummaryWriter(str(self.run_dir / "events" / "a2c"))
        return self._writer

    def _log(self, rollout: Rollout, rewards: np.ndarray, losses: dict[str, float], config: PolicyConfig) -> None:
        """Writes the TensorBoard curves every `log_interval` updates, as means since the last point."""
        sums = self._log_sums
        sums["reward/predicted" if self.rewarder else "reward/used"] += float(rewards.mean())
        sums["reward/true"] += float(rollout.rewards.mean())
        for name, value in losses.items():
            sums[f"policy/{name}"] += value
        self._n_summed += 1
        if self.updates % self.config.log_interval:
            return
        n, now = self._n_summed, time.monotonic()
        scalars = {name: total / n for name, total in sums.items()}
        self.predicted_reward = scalars.get("reward/predicted", math.nan)
        scalars |= {"policy/learning_rate": config.lr, "policy/entropy_weight": config.ent_coef}
        scalars["segments/dropped"] = self.dropped_segments
        scalars["speed/agent_steps_per_second"] = (self.steps - self._log_mark[1]) / (now - self._log_mark[0])
        for name, seconds in self.runner.stopwatch.seconds.items():
            scalars[f"speed/{name.replace(' ', '_')}_steps_per_second"] = (self.steps - self._log_mark[1]) / max(
                seconds, 1e-9
            )
        if self.runner.finished_returns:
            scalars["episode/true_return_last_100"] = float(np.mean(self.runner.finished_returns))
        for name, value in scalars.items():
            self._events().add_scalar(name, value, self.steps)
        sums.clear()
        self._n_summed = 0
        self.runner.stopwatch.seconds.clear()
        self._log_mark = (now, self.steps)

    def _report(self, training: bool) -> None:
        """Tells the main process how far it is, about once a second."""
        now = time.monotonic()
        elapsed = now - self._report_mark[0]
        if elapsed < REPORT_SECONDS and not self._learned_all:
            return
        returns = self.runner.finished_returns
        values = {
            "steps": float(self.steps),
            "max_steps": float(self.max_steps),
            "steps_per_second": (self.steps - self._report_mark[1]) / max(elapsed, 1e-9),
            "episodes": float(self.runner.n_episodes),
            "episode_return": float(np.mean(returns)) if returns else float("nan"),
            "dropped_segments": float(self.dropped_segments),
            "training": float(training),
            "predicted_reward": self.predicted_reward,
            "true_reward_total": self.runner.true_reward_total,
        }
        self.channels.reports.put(Report("a2c", values))
        self._report_mark = (now, self.steps)

    def save(self) -> Path:
        """Writes a checkpoint of the policy."""
        self._save_by = time.monotonic() + checkpoint.MAX_SECONDS
        return checkpoint.save(
            self.run_dir / "policy",
            self.steps,
            {
                "kind": "policy",
                "env_id": self.info.env_id,
                "network": self.config.policy_network,
                "algo": self.config.algo,
                "updates": self.updates,
                "weights": self.policy.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "finished_returns": list(self.runner.finished_returns),
                "episodes": self.runner.n_episodes,
                "true_reward_total": self.runner.true_reward_total,
                "random": torch.get_rng_state(),
                "value_units": self.units.state(),
                "reward_normaliser": self.rewarder.normaliser if self.rewarder else None,
            },
        )

    def _load(self, resume: bool) -> tuple[list[float], int, float]:
        """Goes on from this run's newest checkpoint, or starts from the weights of another run.

        Returns the rewards of the newest episodes before, so that their mean goes on too, how many episodes there were,
        and the reward of all steps; NaN where the checkpoint is from before it was counted.
        """
        own = self.run_dir / "policy"
        if resume and checkpoint.list_checkpoints(own):
            path = checkpoint.find(own, "policy")
        elif self.config.load_policy_ckpt_dir:
            path = checkpoint.find(Path(self.config.load_policy_ckpt_dir), "policy")
        else:
            return [], 0, 0.0
        state = checkpoint.load(path, kind="policy", env_id=self.info.env_id)
        checkpoint.fill(self.policy, state["weights"], path)
        if path.parent != own:
            # Only the true reward is in both runs the same: what is predicted is scaled anew by each.
            if self.rewarder is None and not state.get("reward_normaliser") and "value_units" in state:
                self.units.load(state["value_units"])
            return [], 0, 0.0
        if state["algo"] == self.config.algo:  # else its averages are of other things
            self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self.updates = state["step"], state["updates"]
        self.channels.agent_steps.value = self.steps
        torch.set_rng_state(state["random"])
        if "value_units" in state:  # else it is a checkpoint from before there were any
            self.units.load(state["value_units"])
        if self.rewarder and state.get("reward_normaliser"):  # likewise
            self.rewarder.normaliser = state["reward_normaliser"]
        returns = state["finished_returns"]
        return returns, state.get("episodes", len(returns)), state.get("true_reward_total", math.nan)

    def close(self) -> None:
        """Checkpoints what was learned and ends the environments."""
        if self.updates:
            self.save()
        self.crew.close()
        for actor in self.runner.actors:
            actor.env.close()
        self.evaluator.close()
        if self._writer is not None:
            self._writer.close()


def run_worker(
    channels: Channels,
    n_threads: int,
    spec: RewarderSpec | None,
    worker_arguments: dict[str, Any],
) -> None:
    """Body of the policy's process: steps until told to stop or done.

    Args:
        n_threads: CPU threads of the arithmetic in this process.
        spec: builds this process's copy of the reward predictor; None to learn from the true reward.
        worker_arguments: the remaining arguments of `PolicyWorker`.
    """
    # The networks of vectors are too small for threads to meet in.
    torch.set_num_threads(n_threads if env_info(worker_arguments["env_id"]).kind == "pixels" else 1)
    worker = PolicyWorker(rewarder=spec.build() if spec else None, channels=channels, **worker_arguments)
    try:
        while not channels.stop.is_set() and not worker.finished:
            if not worker.step():
                channels.stop.wait(0.05)
    except CrewBroken:  # about which the main process knows more
        channels.stop.wait(NOTICED_SECONDS)
        if not channels.stop.is_set():
            raise
    finally:
        worker.close()
