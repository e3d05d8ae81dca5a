"""The recorded results: their folders, their estimates, and that the pages show the tables made of them."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning.evidence import record as recording
from benchmarks.learning.evidence import store, tables
from benchmarks.learning.evidence.estimates import improvement, interval, iqm
from benchmarks.learning.evidence.labels_chart import by_task
from benchmarks.pages import PAGES
from commands.experiments import EXPERIMENTS, PREFERENCES, TRUE_REWARD
from commands.report.references import PAPERS_ABLATIONS, references
from drlhp.errors import UserError
from tests.support import ROOT
from tests.support.commands import BRIEF_PPO, here

if not (ROOT / "results").exists():
    pytest.skip("the source distribution has no results", allow_module_level=True)

HOPPER = ("train_policy_with_original_rewards", "Hopper-v5", "--synchronous", "--device", "cpu")
BRIEF = (*BRIEF_PPO, "--million_timesteps", "0.0005", "--n_envs", "2", "--n_steps", "64", "--eval_episodes", "1")


def test_iqm_leaves_out_a_quarter_at_either_end() -> None:
    assert iqm([100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -50.0]) == pytest.approx(3.5)  # of 2, 3, 4 and 5
    assert iqm([1.0, 2.0, 6.0]) == pytest.approx(3.0), "a quarter of three is no whole seed"


def test_probability_of_improvement_counts_pairs_of_runs() -> None:
    # Of six pairs the first beats the second in three (3 > 1, 3 > 2, 2 > 1) and ties once (2 = 2).
    assert improvement([3.0, 2.0, 0.0], [1.0, 2.0]) == pytest.approx(3.5 / 6)
    assert improvement([1.0, 1.0], [1.0, 1.0]) == pytest.approx(0.5)
    assert improvement([1.0, 1.0], [0.0, 0.0], [3.0, 2.0, 0.0], [1.0, 2.0]) == pytest.approx((1 + 3.5 / 6) / 2)


def test_intervals_are_drawn_within_each_sample() -> None:
    assert interval(iqm, [7.0]) is None, "one run has no interval"
    low, high = interval(iqm, [1.0, 2.0, 3.0, 4.0]) or (0, 0)
    assert 1 <= low < 2.5 < high <= 4
    assert interval(iqm, [1.0, 2.0, 3.0, 4.0]) == (low, high), "the same results make the same tables"
    one_always_wins_and_one_always_loses = ([1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0])
    assert interval(improvement, *one_always_wins_and_one_always_loses) == (0.5, 0.5)


def test_the_chart_of_labels_groups_runs_by_task_and_leaves_out_other_teachers() -> None:
    def run(env_id: str, labels: int, **more: str) -> dict[str, Any]:
        settings = {"env_id": env_id, "mode": PREFERENCES, "prefs.max_prefs": labels, "prefs.teacher": "oracle"}
        settings |= {"policy.algo": "ppo"} | more
        return {"settings": settings, "figures": {"evaluation": {"deterministic": labels, "sampled": 2 * labels}}}

    few, many, trick = run("Dot", 20), run("Dot", 500), run("Hopper", 900, **{"prefs.teacher": "circus:backflip"})
    true, unfinished = run("Dot", 500, mode=TRUE_REWARD), run("Dot", 40) | {"figures": {}}
    mistakes = run("Dot", 500, **{"prefs.teacher": "mistake"})
    found = {"a": {0: few, 1: unfinished}, "b": {0: many}, "c": {0: trick, 1: mistakes}, "d": {0: true}}
    found["ablation-e"], found["f"] = {0: few}, {0: (off_policy := run("Dot", 20, **{"policy.algo": "sac"}))}
    assert by_task(found) == {"Dot": {False: {20: [few], 500: [many]}, True: {20: [off_policy]}}}


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The tables as they are made today."""
    return tables.texts()


MARKS = (
    *("headlines", "results-atari", "results-bodies", "results-gymnasium", "results-circus"),
    *("greedy", "ablations", "pairs-atari", "pairs-bodies", "sums", "superseded", "runs"),
)


@pytest.mark.parametrize("mark", MARKS)
def test_the_pages_show_what_was_recorded(mark: str, made: dict[str, str]) -> None:
    assert between(mark) == made[mark], "`python -m benchmarks.learning.evidence pages` renews them"


def between(mark: str) -> str:
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    (page,) = (page for page in pages if f"<!-- {mark} -->" in page)
    return page.split(f"<!-- {mark} -->\n")[1].split(f"\n<!-- /{mark} -->")[0]


def test_each_experiment_has_one_folder_of_three_files() -> None:
    folders = [path for path in store.RESULTS.iterdir() if path.is_dir()]
    assert folders and {folder.name for folder in folders} <= set(EXPERIMENTS)
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {"runs.json", "curves.csv", "curves.png"}, folder.name
        runs, rows = store.read_runs(folder), store.read_rows(folder / "curves.csv")
        assert {int(row["seed"]) for row in rows} == set(runs)
        for seed, run in runs.items():  # the figures are those of the curves
            last = [row for row in rows if row["seed"] == str(seed) and row["policy"] != store.TRAINING][-2:]
            assert run["figures"]["evaluation"] == recording.last_evaluation(last)


def test_superseded_runs_name_their_experiment_and_where_their_curves_are() -> None:
    with (store.RESULTS / "superseded.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows and {row["experiment"] for row in rows} <= set(EXPERIMENTS)
    assert all(row["otherwise"] and len(row["curves_at"]) == 40 and row["curves"].endswith(".csv") for row in rows)
    assert len({(row["curves"], row["seed"]) for row in rows}) == len(rows)  # newer files hold all seeds


def run(env_id: str, labels: int, sampled: float, *, tuned_on: bool = True) -> dict[str, Any]:
    evaluation = {"deterministic": sampled + 1, "sampled": sampled, "agent_steps": 900, "labels": labels - labels // 10}
    figures = {"labels": labels, "agent_steps": 1000, "evaluation": evaluation, "true_reward_total": 1.0}
    return {"figures": figures, "settings": {"env_id": env_id}, "tuned_on": tuned_on}


@pytest.mark.parametrize(("n", "ratio"), [(4, ""), (5, "50%")])
def test_no_ratio_of_few_seeds(n: int, ratio: str) -> None:
    found = {"walker-700": {seed: run("Walker-v1", 700, 10.0) for seed in range(n)}}
    found["walker-true"] = {seed: run("Walker-v1", 0, 20.0) for seed in range(n)}
    row = cells(tables.pairs_table(found, tables.BODIES_PAIRS))[1]  # of the sampled actions
    assert row[2] == "sampled" and row[-1] == ratio


def test_means_over_tasks_keep_runs_with_fewer_labels_apart() -> None:
    found = {}
    for name, task, labels, sampled in (
        *(("walker-true", "Walker", 0, 20.0), ("swimmer-true", "Swimmer", 0, 20.0)),
        *(("walker-true-starts", "Walker", 0, 20.0), ("swimmer-true-starts", "Swimmer", 0, 20.0)),
        *(("walker-700", "Walker", 700, 30.0), ("swimmer-700", "Swimmer", 700, 30.0)),
        *(("walker-200", "Walker", 200, 10.0), ("swimmer-200", "Swimmer", 200, 10.0)),
    ):
        found[name] = {seed: run(f"{task}-v1", labels, sampled + seed, tuned_on=False) for seed in range(3)}
    table = cells(tables.pairs_table(found, tables.BODIES_PAIRS, tables.FEW_LABELS_PAIRS))
    means = [row[7] for row in table if row[0] == "mean of the 2 tasks" and row[2] == "sampled"]
    assert [mean.split()[0] for mean in means] == ["1.00", "0.00"]


def test_a_table_tells_fresh_seeds_from_others_and_reports_what_the_evaluation_saw() -> None:
    runs = {seed: run("Walker-v1", 700, float(seed), tuned_on=seed < 3) for seed in range(5)}
    tuned, fresh = cells(tables.experiments_table({"walker-700": runs}))
    assert tuned[:5] == ["walker-700", "3", "0-2, tuned on", "630", "900"]
    assert fresh[:5] == ["walker-700", "2", "3-4, fresh", "630", "900"]
    assert tuned[7].startswith("1.0 [") and tuned[8] == "0.0 to 2.0"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ablation-hopper-no-l2", "ablations"),
        ("hopper-350-starts", "bodies"),
        ("walker-true-two-starts", "bodies"),
        ("ablation-no-l2", "ablations"),
        ("ablation-none", "atari"),
        ("ablation-many-passes", "atari"),
        ("enduro-290", "atari"),
        ("moving-dot", "atari"),
        ("hopper-v5-true", "gymnasium"),
        ("walker-walk-100", "gymnasium"),
        ("circus-backflip", "circus"),
    ],
)
def test_each_experiment_is_in_the_table_of_its_task(name: str, kind: str) -> None:
    assert tables.kind_of(name, EXPERIMENTS[name].command[1]) == kind


def test_ablations_stand_below_what_they_change_beside_the_papers() -> None:
    found = {"ablation-hopper-no-l2": {201: run("Hopper-v1", 200, 5.0, tuned_on=False)}}
    assert cells(tables.ablations_table(found)) == [], "there is nothing to compare it with"
    found["hopper-200"] = {seed: run("Hopper-v1", 200, 10.0 + seed, tuned_on=seed == 3) for seed in range(4)}
    found["ablation-no-l2"] = {1: run("PongNoFrameskip-v4", 5500, 20.0, tuned_on=False)}
    found["ablation-none"] = {1: run("PongNoFrameskip-v4", 5500, 19.0, tuned_on=False)}
    pong, pong_no_l2, hopper, no_l2 = cells(tables.ablations_table(found))
    assert hopper[:4] == ["hopper-200", "", "3", "0-2"] and hopper[5:7] == ["11.0 to 13.0", ""]
    assert no_l2[:5] == ["ablation-hopper-no-l2", "`--l2 0`", "1", "201", "6.0"] and no_l2[6] == "0.00"
    assert (pong[0], pong_no_l2[0]) == ("ablation-none", "ablation-no-l2") and pong_no_l2[6] == "1.00"
    assert [row[-1] for row in (hopper, no_l2, pong, pong_no_l2)] == ["4,500", "3,920", "20.8", "20.7"]


def test_the_paper_has_every_ablation_of_bodies_and_of_pong() -> None:
    for name, experiment in EXPERIMENTS.items():
        if experiment.ablates and name not in ("ablation-no-regularisation", "ablation-no-segments"):
            assert tables.what_differs(name) in PAPERS_ABLATIONS[experiment.command[1]], name
            original = EXPERIMENTS[experiment.ablates].command
            assert experiment.command[: len(original)] == original, f"{name} changes more than it says"


def test_the_moving_dot_is_told_as_a_share_of_what_the_best_player_gets() -> None:
    runs = {seed: run("MovingDotNoFrameskip-v0", 500, 18.0 + seed, tuned_on=False) for seed in range(3)}
    for one in runs.values():
        one["figures"]["greedy"] = 20.0
    runs[3] = run("MovingDotNoFrameskip-v0", 500, 99.0, tuned_on=False)  # from other starts, of which nothing is known
    (row,) = cells(tables.greedy_table({"moving-dot": runs}))
    assert row == ["moving-dot", "3", "0-2, fresh", "450", "20.0", "100% (95% to 105%)", "95% (90% to 100%)"]


def test_figures_of_others_are_of_about_as_many_labels_and_say_if_they_are_the_best_of_a_run() -> None:
    runs = {0: run("EnduroNoFrameskip-v4", 290, 20.0)}
    runs[0]["settings"]["prefs.teacher"] = "examples.circus:overtaking"
    assert cells(tables.experiments_table({"enduro-290": runs}))[0][-1] == ""
    runs[0]["figures"]["labels"] = 5500
    assert "690" in cells(tables.experiments_table({"enduro-as-people": runs}))[0][-1]
    assert [r.who for r in references("Hopper-v5") if "Tianshou" in r.who] == ["Tianshou PPO, best of each run"]


def cells(table: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()[2:]]


def test_a_recorded_run_joins_its_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "RESULTS", tmp_path / "results")
    for seed in ("0", "1"):
        words = (*HOPPER, *BRIEF, "--seed", seed, "--run_name", f"s{seed}")
        monkeypatch.setattr(sys, "argv", ["run.py", *words, "--log_dir", str(tmp_path)])  # which the run notes
        here(tmp_path, *words)
    recording.record("hopper-v5-true", (tmp_path / "s0", tmp_path / "s1"), tuned_on=True)
    recording.record("hopper-v5-true", (tmp_path / "s1",), note="again")
    folder = tmp_path / "results" / "hopper-v5-true"
    written = json.loads((folder / "runs.json").read_text())
    assert written["settings"]["policy.n_steps"] == 64 and written["seeds"]["0"]["settings"] == {"run_name": "s0"}
    assert str(tmp_path) not in (folder / "runs.json").read_text()
    runs = store.read_runs(folder)
    assert [(run["tuned_on"], run.get("note")) for run in runs.values()] == [(True, None), (False, "again")]
    assert runs[1]["settings"]["run_name"] == "s1" and "--seed 1" in runs[1]["command"]
    rows = store.read_rows(folder / "curves.csv")
    for seed in ("0", "1"):
        there, run_folder = [row for row in rows if row["seed"] == seed], tmp_path / f"s{seed}"
        trained = [row["steps"] for row in there if row["policy"] == store.TRAINING]
        assert trained == [row["steps"] for row in store.PROGRESS.read(run_folder)]
        evaluated = [(row["policy"], row["mean"]) for row in there if row["policy"] != store.TRAINING]
        assert evaluated == [(row["policy"], row["mean"]) for row in store.EVALUATIONS.read(run_folder)]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match=r"s0 is a run of .*Hopper-v5"):
        recording.record("walker2d-v5-true", (tmp_path / "s0",))
    with pytest.raises(UserError, match="no experiment 'hopper'"):
        recording.record("hopper", (tmp_path / "s0",))
