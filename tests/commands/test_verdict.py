"""The last words of a run: the report's verdict, advice, and commands that can be pasted."""

from __future__ import annotations

import csv
import html
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from commands.report import words
from commands.report.runs import Run
from commands.verdict import advices, last_words
from tests.support.commands import BRIEF_PPO, DOT, SYNC, here

TRAIN = "train_policy_with_preferences"
BRIEF = (
    *("--synthetic_prefs", SYNC, "--n_envs", "1", "--million_timesteps", "0.0008", "--max_prefs", "30"),
    *("--max_segs", "60", "--n_initial_epochs", "2", "--log_interval", "5", "--eval_episodes", "2"),
    *BRIEF_PPO,
)


def run_with(folder: Path, rows: list[dict[str, Any]], env_id: str = DOT, mode: str = TRAIN, algo: str = "a2c") -> Run:
    """A finished run with these rows in its progress.csv."""
    progress = [{name: str(value) for name, value in row.items()} for row in rows]
    config = {"mode": mode, "env_id": env_id, "policy": {"algo": algo}}
    return Run(folder, {"config": config}, progress, [], "finished", "")


def row(steps: float, **values: float) -> dict[str, Any]:
    return {"steps": steps, "episode_return": steps / 1e5, "episodes": 9, "labels": 500, "seconds": 9, **values}


def test_a_run_ends_with_the_reports_verdict_and_commands_that_can_be_pasted(tmp_path: Path) -> None:
    (tmp_path / "my runs").mkdir()
    printed = here(tmp_path / "my runs", TRAIN, "CartPole-v1", *BRIEF, "--run_name", "a").stdout
    run = Run.load(tmp_path / "my runs" / "a")
    assert run.evaluations and run.outcome.evaluation is not None
    before, after = words.number(run.outcome.before), words.number(run.outcome.after)
    assert f"{before} before, {after} after (evaluation, 2 episodes)" in printed
    assert words.headline(run).startswith(words.judged(run)) and f"\n{words.judged(run)}.\n" in printed
    assert f"\n{words.reason(run.outcome)}\n" in printed and "To try: more labels (--max_prefs 700): 30" in printed
    watch, report = re.findall("^  python run.py (.+)$", printed, re.MULTILINE)
    assert shlex.split(watch) == ["watch", str(run.path)]
    here(None, *shlex.split(report))
    page = html.unescape((run.path / "report" / "report.html").read_text())
    assert words.judged(run) in page and words.reason(run.outcome) in page
    with (run.path / "evaluations.csv").open() as file:
        first = next(line for line in csv.DictReader(file) if line["policy"] == "sampled")
    assert first["steps"] == "0" and before == words.number(float(first["mean"]))


@pytest.mark.parametrize(
    ("env_id", "rows", "advice"),
    [
        (DOT, [row(0), row(1e5, labels=40)], "more labels (--max_prefs 500): 40 are few"),
        (DOT, [row(0), row(1e5, validation_accuracy=0.52)], "52% of the held-out labels"),
        (
            DOT,
            [row(0, predicted_reward=0.1), row(1e5, predicted_reward=0.1)],
            "the predicted reward was always the same",
        ),
        (DOT, [row(0), row(3e4)], "more steps (--million_timesteps 0.1): 30,000 are few"),
        (DOT, [row(0, episode_return=-21), row(1e5, episode_return=-21)], "the true reward was always the same"),
        (DOT, [row(0, episode_return=float("nan")), row(1e5, episode_return=float("nan"))], "no episode has ended"),
        (DOT, [row(0), row(1e5, validation_accuracy=0.9)], "another seed (--seed 1)"),
    ],
)
def test_a_run_that_did_not_learn_gets_advice(
    tmp_path: Path, env_id: str, rows: list[dict[str, Any]], advice: str
) -> None:
    run = run_with(tmp_path, rows, env_id)
    (said,) = advices(run)
    assert advice in said and f"\nTo try: {said}\n" in last_words(run)


def test_one_point_of_the_curves_says_nothing_about_whether_the_predicted_reward_changes(tmp_path: Path) -> None:
    """The next point of the moving dot's comes after 1,600 steps, and until then the rows repeat the last."""
    same = [row(steps, predicted_reward=0.1) for steps in (98_000, 99_500)]
    (said,) = advices(run_with(tmp_path, [row(0), *same, row(1e5, predicted_reward=0.1)], DOT))
    assert "always the same" in said
    (said,) = advices(run_with(tmp_path, [row(0), *same], DOT))
    assert "another seed" in said


@pytest.mark.parametrize(("algo", "steps", "labels"), [("sac", 1e6, 200), ("ppo", 2e6, 700)])
def test_advice_is_by_the_algorithms_own_defaults(tmp_path: Path, algo: str, steps: float, labels: int) -> None:
    def said(share: float) -> str:
        rows = [row(0), row(share * steps, labels=round(share * labels))]
        return "\n".join(advices(run_with(tmp_path, rows, "HalfCheetah-v1", algo=algo)))

    assert said(1.0).startswith("another seed")
    assert f"(--max_prefs {labels})" in said(0.4) and f"(--million_timesteps {steps / 1e6:g})" in said(0.4)


def test_a_run_that_learned_gets_no_advice(tmp_path: Path) -> None:
    said = last_words(run_with(tmp_path, [row(0), row(1e5, episode_return=21)]))
    assert said.startswith("The agent learned: ") and "To try" not in said


def test_a_run_that_trains_no_policy_names_what_it_made(tmp_path: Path) -> None:
    said = last_words(run_with(tmp_path, [row(0)], mode="gather_initial_prefs"))
    assert said.startswith("500 labels gathered") and f"  python run.py show_prefs {tmp_path}\n" in said
