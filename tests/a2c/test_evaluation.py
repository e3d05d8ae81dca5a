"""Evaluations: which episodes count, what they leave untouched, and what a real run writes about them."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from a2c.config import PolicyConfig
from a2c.evaluation import FIRST_TRAINING_SEED, SEED, Evaluator, play, training_seed
from a2c.model import Policy
from a2c.worker import PolicyWorker, WorkerSpec
from commands.flags import parse
from commands.progress import Progress, draw_curves, summary
from commands.report.runs import Run
from commands.verdict import rewards
from drlhp.errors import UserError, told
from drlhp.label_server.status import curves
from drlhp.runtime.channels import Channels, Report, drain
from drlhp.runtime.pulse import here as here_now
from drlhp.runtime.run_files import EVALUATIONS, POLICIES, PROGRESS, STATISTICS
from envs import env_info as find_env
from envs import make_vec_env
from tests.a2c.test_runner import LENGTHS, ScriptedVecEnv, env_info, episodes_of
from tests.support import ROOT
from tests.support.commands import DOT, PONG, SYNC, TINY, UNEVALUATED, answers, here, small_files, started, wait_for

CARTPOLE = "CartPole-v1"
SHORT_GAME = "Cut-v0"  # Qbert, cut after 50 steps
SHORT = ("--million_timesteps", "0.0004")


def channels(*, take_turns: bool = False) -> Channels:
    return Channels.create(synchronous=not take_turns, take_turns=take_turns)


def new_policy(env_id: str) -> Policy:
    torch.manual_seed(3)
    return Policy(find_env(env_id), "feature_points" if env_id in (DOT, PONG) else "nature")


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "evaluations.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# -- which episodes count ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampled", [False, True])
def test_the_first_episode_of_every_environment_counts_with_its_own_rewards(sampled: bool) -> None:
    """Environment 1 ends twenty short episodes while environment 2 plays its first."""
    info = env_info()
    env = ScriptedVecEnv(info, LENGTHS)
    episodes = play(env, Policy(info, "feature_points"), channels(), seed=0, sampled=sampled)
    assert episodes is not None
    firsts = [episodes_of(shown)[0] for shown in env.shown]
    assert episodes.lengths.tolist() == [13, 2, 200, 7] == [len(first) for first in firsts]
    returns = [sum(step.reward for step in first) for first in firsts]
    assert episodes.returns.tolist() == pytest.approx(returns) and max(returns) > 50, "nothing is clipped"
    assert not episodes.capped.any()
    numbers = episodes.statistics()
    assert (numbers["episodes"], numbers["capped"], numbers["mean_length"]) == (4, 0, 55.5)
    assert numbers["mean"] == pytest.approx(np.mean(returns)) and numbers["std"] == pytest.approx(np.std(returns))
    assert (numbers["lowest"], numbers["highest"]) == pytest.approx((min(returns), max(returns)))


def test_a_long_evaluation_is_not_taken_for_one_that_hangs() -> None:
    """Each of its steps begins a wait anew, about which people are told after ten seconds."""
    waits = []

    class Noting(Policy):
        def act(self, *inputs: Any) -> Any:
            waits.append((here_now().what, here_now().since))
            return super().act(*inputs)

    info = env_info()
    assert play(ScriptedVecEnv(info, LENGTHS), Noting(info, "feature_points"), channels(), seed=0, sampled=False)
    assert {what for what, _ in waits} == {"a step of an evaluation"}
    assert len(set(waits)) == len(waits) == 200


def test_a_long_episode_is_cut_and_counted() -> None:
    info = env_info()
    env = ScriptedVecEnv(info, LENGTHS)
    episodes = play(env, Policy(info, "feature_points"), channels(), seed=0, sampled=False, max_steps=13)
    assert episodes is not None
    assert episodes.lengths.tolist() == [13, 2, 13, 7]
    assert episodes.capped.tolist() == [False, False, True, False], "an end of its own at the last step is no cut"
    assert episodes.returns[2] == pytest.approx(sum(step.reward for step in env.shown[2][:13]))
    assert episodes.statistics()["capped"] == 1


def test_an_episode_in_which_nothing_is_won_is_cut() -> None:
    """A new policy does not serve in Breakout's second life, and scores before that."""
    with closing(make_vec_env("BreakoutNoFrameskip-v4", 2, SEED)) as env:
        policy = new_policy("BreakoutNoFrameskip-v4")
        with torch.no_grad():
            policy.actor.bias[2] += 100  # always to the right
        episodes = play(env, policy, channels(), seed=3, sampled=False, max_without_reward=150)
    assert episodes is not None and episodes.capped.all() and (episodes.lengths >= 150).all()
    assert (episodes.lengths == 150).tolist() == (episodes.returns == 0).tolist(), "each reward gives it more time"


def test_continuous_actions() -> None:
    info = env_info("vector", None)
    policy, env = Policy(info, "nature"), ScriptedVecEnv(info, [[3], [4]])
    assert play(env, policy, channels(), seed=0, sampled=False) is not None
    with torch.inference_mode():
        mean = policy(torch.from_numpy(env.shown[1][2].observation[None]))[0][0]
    np.testing.assert_allclose(env.shown[1][2].action, mean.numpy(), atol=1e-6)


@pytest.mark.parametrize("env_id", [DOT, CARTPOLE])
def test_every_evaluation_plays_the_same_episodes_and_a_better_policy_shows(tmp_path: Path, env_id: str) -> None:
    config = PolicyConfig(eval_episodes=3)
    policy, ring = new_policy(env_id), channels()
    with closing(Evaluator(find_env(env_id), config, tmp_path)) as evaluator:
        first = evaluator.evaluate(policy, ring, 0)
        torch.rand(1)  # training goes on
        again = evaluator.evaluate(policy, ring, 1)
        with torch.no_grad():
            policy.actor.bias[0] += 100
        other = evaluator.evaluate(policy, ring, 2)
    with closing(Evaluator(find_env(env_id), config, tmp_path)) as fresh:
        resumed = fresh.evaluate(policy, ring, 3)
    assert first and again and other and resumed
    for name in ("deterministic", "sampled"):
        assert first[name].returns.tolist() == again[name].returns.tolist()
        assert first[name].lengths.tolist() == again[name].lengths.tolist()
        assert other[name].returns.tolist() == resumed[name].returns.tolist()
    assert first["sampled"].returns.tolist() != other["sampled"].returns.tolist()
    assert first["sampled"].returns.tolist() != first["deterministic"].returns.tolist()
    if env_id == CARTPOLE:  # always pushed to one side, it falls as its start decides
        assert len(set(other["deterministic"].lengths.tolist())) > 1, "episodes differ from each other"
        lengths = [other[name].lengths.tolist() for name in ("deterministic", "sampled")]
        assert lengths[0] == lengths[1], "both start alike"


def test_seeds_of_runs_share_no_start_with_each_other_nor_with_evaluations() -> None:
    evaluations, starts = range(SEED, SEED + 1000), set[int]()
    for updates in (0, 1, 1000):
        for seed in range(300):
            mine = training_seed(seed, updates)
            assert mine >= FIRST_TRAINING_SEED > evaluations.stop and mine + 1000 < 2**31
            assert not set(range(mine, mine + 64)).intersection(starts)
            starts.update(range(mine, mine + 64))


@pytest.mark.parametrize("env_id", [CARTPOLE, DOT])
def test_runs_with_neighbouring_seeds_start_apart(tmp_path: Path, env_id: str) -> None:
    shown = []
    for seed in (3, 4):
        config = replace(parse(["train_policy_with_original_rewards", env_id]).policy, n_envs=2)
        with closing(PolicyWorker(WorkerSpec(env_id, config, tmp_path / str(seed), seed), channels())) as made:
            made.runner.collect()
            shown.append({frame.tobytes() for frame in made.runner.rollout.observations[0]})
    assert len(shown[0]) == len(shown[1]) == 2 and not shown[0] & shown[1]


def test_a_new_policy_loses_at_pong() -> None:
    """Random play loses by 20.3 on the mean of many games; a game is lost at 21."""
    with closing(make_vec_env(PONG, 2, SEED)) as env:
        policy = new_policy(PONG)
        episodes = play(env, policy, channels(), seed=SEED, sampled=True)
        short = play(env, policy, channels(), seed=SEED, sampled=True, max_steps=40)
    assert episodes is not None and short is not None
    assert not episodes.capped.any() and (episodes.lengths > 700).all()
    assert (episodes.returns >= -21).all() and (episodes.returns <= -15).all()
    assert -21 <= episodes.returns.mean() <= -18.5 and (episodes.returns % 1 == 0).all()
    assert short.capped.all() and (short.returns > -5).all()


def test_atari_plays_the_same_games_again() -> None:
    with closing(make_vec_env("BreakoutNoFrameskip-v4", 2, 5)) as env:
        policy = new_policy("BreakoutNoFrameskip-v4")
        played = [play(env, policy, channels(), seed=SEED, sampled=False, max_steps=n) for n in (90, 150)]
        again = play(env, policy, channels(), seed=SEED, sampled=False, max_steps=90)
    assert played[0] and again
    assert played[0].returns.tolist() == again.returns.tolist()
    assert played[0].lengths.tolist() == again.lengths.tolist()


# -- when --------------------------------------------------------------------------------------------------------------


def due_at(evaluator: Evaluator, steps: list[int]) -> list[int]:
    found = []
    for number in steps:
        if evaluator.is_due(number, last=number == steps[-1]):
            found.append(number)
            evaluator.evaluated_at = number
    return found


def test_evaluations_come_at_the_start_at_each_multiple_and_at_the_end(tmp_path: Path) -> None:
    config = PolicyConfig(eval_interval_million_timesteps=0.0001)
    evaluator = Evaluator(find_env(DOT), config, tmp_path)
    assert due_at(evaluator, [0, 0, 40, 80, 120, 160, 200, 240, 240]) == [0, 120, 200, 240]
    assert due_at(Evaluator(find_env(DOT), config, tmp_path), [0, 350, 390, 400]) == [0, 350, 400]
    assert due_at(Evaluator(find_env(DOT), config, tmp_path), [50, 90]) == [50, 90], "one resumed without any"
    off = Evaluator(find_env(DOT), replace(config, eval_interval_million_timesteps=0.0), tmp_path)
    assert due_at(off, [0, 100, 200]) == []


def test_a_resumed_run_evaluates_where_none_was_before(tmp_path: Path) -> None:
    """Its checkpoint may be older than its newest evaluation, and a crash may have cut a row."""
    config = PolicyConfig(eval_interval_million_timesteps=0.0001)
    written = "".join(f"1.0,{steps},9,{policy},2,1.5,0.5,1.0,2.0,3.0,0\n" for steps in (0, 200) for policy in POLICIES)
    (tmp_path / "evaluations.csv").write_text(f"{','.join(EVALUATIONS.columns)}\n{written}2.0,300,9,determ")
    assert due_at(Evaluator(find_env(DOT), config, tmp_path), [120, 200, 240, 300, 380]) == [300, 380]


def test_the_moving_dot_has_an_interval_of_its_own() -> None:
    words = ("train_policy_with_original_rewards", DOT)
    assert parse(list(words)).policy.eval_interval_million_timesteps == 0.05
    assert parse([words[0], PONG]).policy.eval_interval_million_timesteps == 0.25


def test_more_episodes_are_played_where_they_are_cheap() -> None:
    for env_id, n in ((DOT, 50), ("Hopper", 50), ("Hopper-v5", 50), (PONG, 20), (CARTPOLE, 20)):
        assert parse(["train_policy_with_original_rewards", env_id]).policy.eval_episodes == n


# -- what they leave untouched -----------------------------------------------------------------------------------------


@contextmanager
def worker(folder: Path, env_id: str, **changes: Any) -> Iterator[tuple[PolicyWorker, Channels]]:
    """A worker on the true reward, in this process."""
    config = replace(parse(["train_policy_with_original_rewards", env_id, "--algo", "a2c"]).policy, n_envs=2, **changes)
    ring = channels()
    made = PolicyWorker(WorkerSpec(env_id, config, folder, 0, resume=folder.exists()), ring)
    with closing(made):
        yield made, ring


def state(made: PolicyWorker) -> dict[str, Any]:
    """Everything that decides how training goes on."""
    return {
        **made.policy.state_dict(),
        "random": torch.get_rng_state(),
        "next": torch.from_numpy(made.runner.rollout.observations.copy()),
        "lr": torch.tensor(made.learner.optimizer.param_groups[0]["lr"]),
        "returns": torch.tensor(list(made.runner.finished_returns)),
    }


@pytest.fixture
def short_game() -> Iterator[None]:
    game = gymnasium.registry["QbertNoFrameskip-v4"]
    kwargs = {**game.kwargs, "max_num_frames_per_episode": 200}
    gymnasium.register(SHORT_GAME, entry_point=game.entry_point, kwargs=kwargs)
    yield
    del gymnasium.registry[SHORT_GAME]


@pytest.mark.usefixtures("short_game")
@pytest.mark.parametrize(("env_id", "steps", "n"), [(DOT, 50, 3), (SHORT_GAME, 100, 2)])
def test_training_goes_on_as_if_there_had_been_no_evaluation(tmp_path: Path, env_id: str, steps: int, n: int) -> None:
    """`n` evaluations in 100 steps, one at 0 and one every so many steps."""
    states = []
    for interval in (0.0, steps / 1e6):
        with worker(
            tmp_path / str(interval),
            env_id,
            million_timesteps=0.0001,
            eval_interval_million_timesteps=interval,
            eval_episodes=1,
            policy_network="feature_points",  # the fastest
        ) as (made, ring):
            while not made.finished:
                made.step()
            states.append(state(made))
            evaluations = [report for report in drain(ring.reports) if report.source == "evaluation"]
            assert len(evaluations) == (2 * n if interval else 0), "of each the beginning and the end"
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


@pytest.mark.usefixtures("short_episodes")
def test_a_run_in_lockstep_is_the_same_bit_for_bit_with_and_without(tmp_path: Path) -> None:
    words = ("train_policy_with_preferences", DOT, "--synthetic_prefs", "--synchronous", *TINY, *SHORT)
    here(tmp_path, *words, "--run_name", "with", "--eval_interval_million_timesteps", "0.0002")
    here(tmp_path, *words, "--run_name", "without", *UNEVALUATED)
    assert len(rows(tmp_path / "with")) == 2 * 3 and not (tmp_path / "without" / "evaluations.csv").exists()
    for part in ("policy", "reward_predictor"):
        newest = [sorted((tmp_path / name / part).glob("*.pt"))[-1] for name in ("with", "without")]
        assert newest[0].name == newest[1].name
        ours, theirs = (torch.load(path, weights_only=True) for path in newest)
        assert all(torch.equal(ours["weights"][name], theirs["weights"][name]) for name in theirs["weights"])
        assert part != "policy" or torch.equal(ours["random"], theirs["random"])
    choices = [[row[1:] for row in answers(tmp_path / name)] for name in ("with", "without")]
    assert choices[0] == choices[1]


def test_the_clocks_of_the_speeds_stand_still(tmp_path: Path) -> None:
    with worker(tmp_path / "a", DOT, eval_episodes=1) as (made, _):
        told = made.telemetry
        before = (time.monotonic(), told.report_pace.since, told.curve_pace.since)
        made.evaluate_if_due()
        after = (time.monotonic(), told.report_pace.since, told.curve_pace.since)
        took, *moved = (now - then for now, then in zip(after, before, strict=True))
        assert all(took / 2 < by <= took for by in moved), "as far as the evaluation was long"


def test_the_trainer_gets_its_turns_during_an_evaluation() -> None:
    info, ring = env_info(), channels(take_turns=True)
    env, policy = ScriptedVecEnv(info, LENGTHS), Policy(info, "feature_points")
    played = threading.Thread(target=play, args=(env, policy, ring), kwargs={"seed": 0, "sampled": False})
    played.start()
    turns = 0
    while played.is_alive():
        with ring.turns.trainer():
            turns += 1
    played.join()
    assert len(env.shown[2]) == 200 and turns > 20


def test_a_stop_ends_an_evaluation_without_a_result(tmp_path: Path) -> None:
    """The environment itself asks for the stop, at its fifth step."""

    class Stopping(ScriptedVecEnv):
        def step(self, actions: np.ndarray) -> Any:
            if len(self.shown[0]) == 4:
                ring.stop.set()
            return super().step(actions)

    with worker(tmp_path / "a", DOT) as (made, ring):
        made.evaluator.n_episodes = 2
        made.evaluator._env = Stopping(env_info(), LENGTHS)
        made.policy = Policy(env_info(), "feature_points")
        random = torch.get_rng_state()
        made.step()
        assert len(made.evaluator._env.shown[0]) == 5
        assert made.steps == 0, "no update comes before the evaluation that a resumed run begins anew"
        assert torch.equal(torch.get_rng_state(), random)
        assert [report.values["running"] for report in drain(ring.reports)] == [1], "it began, and that is all"
        assert made.evaluator.evaluated_at == -1


# -- what a run writes -------------------------------------------------------------------------------------------------


def test_a_real_run_writes_each_evaluation_and_a_resumed_one_repeats_none(tmp_path: Path, short_episodes: int) -> None:
    folder = tmp_path / "a"
    words = ("train_policy_with_preferences", DOT, "--synthetic_prefs", "--run_name", "a", *TINY, SYNC)
    often = (*SHORT, "--eval_interval_million_timesteps", "0.0002", "--eval_episodes", "2")
    result = here(tmp_path, *words, *often)
    header = (folder / "evaluations.csv").read_text().splitlines()[0]
    assert header == "seconds,steps,labels,policy,episodes,mean,std,lowest,highest,mean_length,capped"
    assert tuple(header.split(",")) == EVALUATIONS.columns
    found = rows(folder)
    assert [row["policy"] for row in found] == ["deterministic", "sampled"] * 3
    steps = [int(row["steps"]) for row in found[::2]]
    assert steps[0] == 0 and 200 <= steps[1] < 220 and 400 <= steps[2] < 420
    for row in found:
        assert (row["episodes"], row["mean_length"], row["capped"]) == ("2", f"{short_episodes}.0", "0")
        assert float(row["lowest"]) <= float(row["mean"]) <= float(row["highest"])
        assert 12 <= int(row["labels"]) <= 20
    seconds = [float(row["seconds"]) for row in found]
    assert seconds[0] > 0 and seconds == sorted(seconds)
    last = {row["policy"]: float(row["mean"]) for row in found}
    newest = f"deterministic {last['deterministic']:.1f}, sampled {last['sampled']:.1f}"
    assert f"evaluation (2 episodes) {newest}" in " ".join(result.stdout.split())
    assert b"evaluation/sampled_mean" in b"".join(path.read_bytes() for path in (folder / "events" / "a2c").iterdir())

    text = (folder / "evaluations.csv").read_text()
    again = here(tmp_path, "--resume", str(folder))
    assert (folder / "evaluations.csv").read_text() == text
    assert newest in again.stdout, "the newest is that of the earlier part"

    here(tmp_path, "--resume", str(folder), "--million_timesteps", "0.0006")
    longer = rows(folder)
    assert longer[:6] == found
    assert [row["policy"] for row in longer[6:]] == ["deterministic", "sampled"]
    assert 600 <= int(longer[6]["steps"]) < 620 and float(longer[6]["seconds"]) > seconds[-1]


def test_an_evaluation_that_the_end_of_a_run_lacks_is_made_up_for(tmp_path: Path) -> None:
    """As after a crash or a Ctrl-C in the last one: nothing is left to learn."""
    folder = tmp_path / "a"
    length = ("--n_envs", "4", "--million_timesteps", "0.0003", "--eval_episodes", "1")
    words = ("train_policy_with_original_rewards", DOT, *length)
    here(tmp_path, *words, "--run_name", "a", SYNC)
    whole = rows(folder)
    lines = (folder / "evaluations.csv").read_text().splitlines(keepends=True)
    (folder / "evaluations.csv").write_text("".join(lines[:-2]))
    here(tmp_path, "--resume", str(folder))
    assert [{**row, "seconds": ""} for row in rows(folder)] == [{**row, "seconds": ""} for row in whole]


def test_ctrl_c_in_an_evaluation_writes_none_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    words = ("train_policy_with_original_rewards", DOT, "--run_name", "a", "--eval_episodes", "1000")
    with started(tmp_path, *words) as process:
        wait_for(lambda: "evaluation begins at 0 steps" in logged(folder), process)
        process.send_signal(2)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in output
    assert not (folder / "evaluations.csv").exists() and not (folder / "events").exists()


def logged(folder: Path) -> str:
    log = folder / "log.txt"
    return log.read_text() if log.exists() else ""


def test_a_pretrained_predictor_is_not_said_to_be_pretrained_still(tmp_path: Path) -> None:
    """As after a resumption, where the policy says its first word later."""
    shown = Progress(tmp_path, initial_labels=0, goal_labels=0, live=False)
    for pretrained, said in ((0.0, "Pretraining the reward predictor, epoch 3 of 9 or more"), (1.0, "is pretrained")):
        values = {"epochs": 3.0, "ends_at_epoch": 9.0, "pretrained": pretrained}
        shown.update(Report("reward predictor", values), labels=5)
        assert said in shown.line()
    shown.close()


def test_a_resumed_runs_curve_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """The rows after it are about steps that the weights have not learned from."""
    values = {"max_steps": 100, "training": 1, "steps_per_second": 9, "episode_return": 1.0}
    for steps in ((0, 10, 20, 30), (12, 22)):
        shown = Progress(tmp_path, initial_labels=0, goal_labels=0, live=False)
        shown._start -= 1  # a second goes by
        for step in steps:
            shown.update(Report("a2c", {**values, "steps": step}), labels=5)
        shown.close()
    rows = PROGRESS.read(tmp_path)
    assert [row["steps"] for row in rows] == ["0", "10", "12", "22"]
    assert [float(row["seconds"]) for row in rows] == sorted(float(row["seconds"]) for row in rows)


def test_segments_that_are_gathered_alone_are_counted_in_the_line(tmp_path: Path) -> None:
    shown = Progress(tmp_path, initial_labels=0, goal_labels=0, live=False)
    shown.show(0, "3/9")
    assert shown.line().startswith("Gathering clips 3/9 · ")
    shown.close()


@pytest.mark.parametrize(
    ("goal", "first", "then"),
    [(9, "1/9 (labels wait for all)", "4/9 (labels wait for all)"), (0, "1/9", "4/9")],
)
def test_gathering_clips_says_how_long_it_takes(tmp_path: Path, goal: int, first: str, then: str) -> None:
    with closing(Progress(tmp_path, initial_labels=goal, goal_labels=goal, live=False)) as shown:
        shown.show(0, first)
        assert "left" not in shown.line(), "no pace is known"
        shown.show(0, then)
        assert re.search(r"gone, \d+:\d\d left$", shown.line())


def test_exploring_says_how_long_it_takes(tmp_path: Path) -> None:
    with closing(Progress(tmp_path, initial_labels=0, goal_labels=0, live=False)) as shown:
        for steps_left in (900, 500):
            shown.update(Report("exploration", {"steps_left": steps_left}), labels=0)
            line = shown.line()
        assert re.search(r"500 steps left · .* gone, \d+:\d\d left$", line)


def test_the_time_left_does_not_grow_while_the_policy_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with closing(Progress(tmp_path, initial_labels=0, goal_labels=0, live=False)) as shown:
        values = {"max_steps": 100, "training": 1, "steps_per_second": 1, "episode_return": 1.0}
        for steps in (10, 30):
            now = float(steps)
            shown.update(Report("a2c", {**values, "steps": steps}), labels=0)
            line = shown.line()
        assert line.endswith("0:30 gone, 1:10 left")
        shown.update(Report("evaluation", {"running": 1.0, "steps": 30.0}), labels=0)
        now = 50.0
        assert shown.line().endswith("0:50 gone, 0:50 left")
        now = 140.0
        assert shown.line().endswith("2:20 gone, 0:00 left")


@pytest.mark.parametrize("people_label", [True, False])
def test_beside_a_labellers_own_pace_the_line_has_no_second_estimate(tmp_path: Path, people_label: bool) -> None:
    shown = Progress(tmp_path, initial_labels=20, goal_labels=30, live=False, people_label=people_label)
    with closing(shown):
        for labels in (1, 4):
            shown.show(labels, "50/60")
            line = shown.line()
        assert line.endswith(" left") != people_label
        for steps in (10, 50):
            values = {"steps": steps, "max_steps": 100, "training": 1, "steps_per_second": 9, "episode_return": 1.0}
            shown.update(Report("a2c", values), labels=20)
            line = shown.line()
        assert line.endswith(" left"), "the policy's time is another's"


def rewards_of(folder: Path) -> str:
    """The rewards in the summary of a run with these tables."""
    record = {"config": {"mode": "train_policy_with_original_rewards", "env_id": DOT}}
    return rewards(Run(folder, record, PROGRESS.read(folder), [], "finished", ""))


def test_labels_that_nobody_adds_to_have_no_goal_and_nothing_is_minus_zero(tmp_path: Path) -> None:
    shown = Progress(tmp_path, initial_labels=0, goal_labels=0, live=False)
    values = {"steps": 50, "max_steps": 100, "training": 1, "steps_per_second": 9, "episode_return": -0.02}
    shown.update(Report("a2c", values), labels=9)
    assert "true reward 0.0 · labels 9 · " in shown.line()
    shown.close()
    assert rewards_of(tmp_path).startswith("0.0 before, 0.0 after")


def test_a_resumed_run_says_what_it_began_with(tmp_path: Path) -> None:
    a2c = {"max_steps": 100, "steps_per_second": 9, "episodes": 1, "dropped_segments": 0}
    for start, episode_return in ((0, 5.0), (50, 7.0)):
        shown = Progress(tmp_path, initial_labels=0, goal_labels=0, live=False)
        for steps, value in ((start, math.nan), (start, episode_return), (start + 50, 9.0)):
            values = {**a2c, "steps": steps, "training": float(steps > start), "episode_return": value}
            shown.update(Report("a2c", values), labels=0)
        shown.close()
        assert rewards_of(tmp_path).startswith("5.0 before, 9.0 after")


def test_a_row_that_a_full_disk_has_no_room_for_is_told_once(tmp_path: Path) -> None:
    """And not again, in place of that, when the file is closed."""
    shown = Progress(tmp_path, initial_labels=0, goal_labels=0, live=False)
    with small_files(10):
        with pytest.raises(OSError) as failure:
            shown.update(Report("a2c", {"steps": 1, "max_steps": 9, "episode_return": 5.0}), labels=0)
        shown.close()
    assert re.fullmatch(r"cannot use .+progress\.csv \(.+\): free some space on its disk\.", told(failure.value))


def test_a_row_that_a_full_disk_has_cut_is_no_part_of_the_next(tmp_path: Path) -> None:
    """With which it would read as one, of other numbers; and the curves need whole rows."""
    a2c = {"max_steps": 100, "steps_per_second": 9, "episodes": 1, "episode_return": 5.0, "dropped_segments": 0}
    numbers = dict.fromkeys(STATISTICS, 1.0)
    played = {f"{policy}_{name}": value for policy in POLICIES for name, value in numbers.items()}
    config = {"mode": "train_policy_with_original_rewards", "env_id": "CartPole-v1", "seed": 0}
    (tmp_path / "config.json").write_text(json.dumps({"config": config}))
    for steps in (10, 20):
        shown = Progress(tmp_path, initial_labels=0, goal_labels=0, live=False)
        draw_curves(tmp_path)
        shown.update(Report("evaluation", {"steps": steps, "running": 1}), labels=0)
        shown.update(Report("evaluation", {"steps": steps, "running": 0, **played}), labels=0)
        shown.update(Report("a2c", {**a2c, "steps": steps, "training": 1}), labels=0)
        shown.close()
        for name in ("progress.csv", "evaluations.csv"):
            with (tmp_path / name).open("a") as file:
                file.write("12,5")
    shown = Progress(tmp_path, initial_labels=0, goal_labels=0, live=False)
    assert shown.seconds < 12
    shown.close()
    with (tmp_path / "progress.csv").open(newline="") as file:
        assert [row["steps"] for row in csv.DictReader(file)] == ["10", "20"]
    assert [row["steps"] for row in EVALUATIONS.read_to_go_on(tmp_path)] == ["10", "10", "20", "20"]


NO_TEXT, OTHER_COLUMNS, NO_NUMBERS = b"\x00\xff\xfe\n\x80,1\n", b"a,b\n1,2\n", b"steps,seconds,capped\nx,y,z\n"


@pytest.mark.parametrize("content", [NO_TEXT, OTHER_COLUMNS, NO_NUMBERS])
def test_a_progress_that_is_none_is_said_to_be_damaged(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "progress.csv").write_bytes(content)
    with pytest.raises(UserError, match=r"progress\.csv is damaged; move it away"):
        Progress(tmp_path, initial_labels=0, goal_labels=0, live=False)


@pytest.mark.parametrize("content", [NO_TEXT, OTHER_COLUMNS, NO_NUMBERS])
def test_evaluations_that_are_none_are_said_to_be_damaged(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "evaluations.csv").write_bytes(content)
    with pytest.raises(UserError, match=r"evaluations\.csv is damaged; move it away"):
        EVALUATIONS.read_to_go_on(tmp_path)


def test_the_predictors_loss_has_a_curve_and_a_run_from_before_goes_on_without(tmp_path: Path) -> None:
    a2c = {"max_steps": 100, "steps_per_second": 9, "episodes": 1, "episode_return": 5.0, "dropped_segments": 0}
    before = PROGRESS.columns[: PROGRESS.columns.index("validation_loss")]
    for name, table in (("new", ""), ("old", ",".join(before) + "\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "progress.csv").write_text(table)
        shown = Progress(tmp_path / name, initial_labels=0, goal_labels=0, live=False)
        for steps in (10, 20):
            shown.update(Report("reward predictor", {"validation_accuracy": 0.8, "validation_loss": 0.5}), labels=5)
            shown.update(Report("a2c", {**a2c, "steps": steps, "training": 1}), labels=5)
        shown.close()
        found = {curve["name"]: curve["values"] for curve in curves(tmp_path / name, true_reward=False)}
        assert found["Right about held-out answers"] == [80, 80]
        assert found.get("Loss on held-out answers") == ([0.5, 0.5] if name == "new" else None)


def test_no_line_is_redrawn_where_the_terminal_cannot(tmp_path: Path) -> None:
    master, slave = os.openpty()
    for terminal, live in (("dumb", "False"), ("xterm", "True")):
        script = "from commands import progress; print(progress.is_terminal())"
        environment = {**os.environ, "TERM": terminal}
        subprocess.run([sys.executable, "-c", script], stdout=slave, env=environment, cwd=ROOT, check=True)
        assert os.read(master, 100).decode().strip() == live


def test_what_the_main_process_makes_of_the_reports(tmp_path: Path) -> None:
    """Time and labels are those of the beginning; the line says what goes on; the curves hold both policies."""
    shown = Progress(tmp_path, initial_labels=0, goal_labels=0, live=False)
    a2c = {"max_steps": 100, "steps_per_second": 9, "episodes": 1, "episode_return": 5.0, "dropped_segments": 0}
    for steps in (0, 50):
        shown.update(Report("evaluation", {"steps": steps, "running": 1}), labels=7 + steps)
        assert f"Evaluating the policy at {steps} steps" in shown.line()
        numbers = {"episodes": 10, "std": 1.0, "lowest": 0.0, "highest": 9.0, "mean_length": 4.0, "capped": 2}
        played = {
            f"{policy}_{name}": value for policy in ("deterministic", "sampled") for name, value in numbers.items()
        }
        means = {"deterministic_mean": steps + 1.25, "sampled_mean": steps + 2.0}
        shown.update(Report("evaluation", {"steps": steps, "running": 0, **played, **means}), labels=99)
        shown.update(Report("a2c", {**a2c, "steps": steps + 1, "training": 1}), labels=99)
    assert "evaluation deterministic 51.2, sampled 52.0" in shown.line() and "Evaluating" not in shown.line()
    assert "true reward 5.0" in shown.line()
    for_labellers = shown.line(true_reward=False)
    assert "51/100 steps" in for_labellers and not any(word in for_labellers for word in ("reward", "5.0", "51.2"))
    found = rows(tmp_path)
    assert [row["labels"] for row in found] == ["7", "7", "57", "57"]
    assert [row["mean"] for row in found] == ["1.25", "2.0", "51.25", "52.0"]
    assert [row["capped"] for row in found] == ["2"] * 4
    text = summary(shown, rewards="", uses_preferences=False)
    assert "evaluation (10 episodes)  deterministic 51.2, sampled 52.0" in text
    shown.close()
    config = {"mode": "train_policy_with_original_rewards", "env_id": "CartPole-v1", "seed": 0}
    (tmp_path / "config.json").write_text(json.dumps({"config": config}))
    draw_curves(tmp_path)
    with_evaluations = (tmp_path / "curves.png").read_bytes()
    (tmp_path / "evaluations.csv").unlink()
    draw_curves(tmp_path)
    assert (tmp_path / "curves.png").read_bytes() != with_evaluations
