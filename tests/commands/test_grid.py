"""A sweep in a file: which runs it means, how they are named, and what is refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands.experiments import EXPERIMENTS
from commands.flags import parse
from commands.grid import read_grid
from commands.reproduce import Plan
from drlhp.cli import USER_ERROR
from drlhp.errors import UserError
from tests.commands.test_experiments import TINY, quicken
from tests.support.commands import here, one_sentence

NAME = "moving-dot"


def grid(tmp_path: Path, text: str) -> Path:
    (tmp_path / "grid.yaml").write_text(text)
    return tmp_path / "grid.yaml"


def test_all_combinations_of_a_mappings_values_on_all_seeds(tmp_path: Path) -> None:
    file = grid(tmp_path, "lr: [1e-4, 0.0005]\nsynchronous: true\nbatchnorm: [true, false]\n")
    plan = Plan.make(NAME, 2, tmp_path, str(file))
    names = [job.run.name for job in plan.jobs]
    assert len(set(names)) == 8 and plan.name == "moving-dot-grid" and not plan.beside
    assert names[:3] == [
        "moving-dot-lr=1e-4-synchronous=true-batchnorm=true-seed0",
        "moving-dot-lr=1e-4-synchronous=true-batchnorm=true-seed1",
        "moving-dot-lr=1e-4-synchronous=true-batchnorm=false-seed0",
    ]
    config = parse(list(plan.jobs[7].flags))
    assert (config.policy.lr, config.predictor.batchnorm, config.synchronous, config.seed) == (0.0005, False, True, 1)
    assert config.run_name == names[7] and config.log_dir == str(tmp_path)


def test_a_list_gives_the_combinations_themselves_also_in_json(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([{}, {"l2": 0, "teacher": "examples.circus:racing"}, {"l2": 0.5}]))
    plan = Plan.make(NAME, 1, tmp_path, str(tmp_path / "rows.json"))
    second = "moving-dot-l2=0-teacher=examples.circus_racing-seed0"
    assert [job.run.name for job in plan.jobs] == ["moving-dot-seed0", second, "moving-dot-l2=0.5-seed0"]
    assert parse(list(plan.jobs[1].flags)).prefs.teacher == "examples.circus:racing"


def test_names_that_would_be_the_same_or_too_long_are_numbers(tmp_path: Path) -> None:
    long = "examples.circus:" + "a" * 200
    rows = read_grid(grid(tmp_path, f"teacher: ['examples.circus:racing', 'examples.circus::racing', '{long}']"), NAME)
    assert [row.name for row in rows] == ["row1", "row2", "row3"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("learn_rate: [1]", "sets learn_rate, which is no flag of a training run"),
        ("lrr: [1]", "sets lrr, which is no flag of a training run; did you mean lr?"),
        ("n_envs: [4, many]\nlr: [0.1]", "sets n_envs to 'many', which --n_envs does not take; `python run.py train_"),
        ("n_envs: [4, -1]", "row 2 of"),
        ("batchnorm: [1]", "sets batchnorm to 1; give it true or false"),
        ("lr: [[1, 2]]", "sets lr to several values"),
        ("seed: [1, 2]", "sets seed, and --seeds gives the number of seeds; remove it"),
        ("run_name: [a, b]", "runs are named by what differs"),
        ("log_dir: [a, b]", "--log_dir of the command is for all runs"),
        ("lr: [0.1, 1e-1]", "rows 1 and 2 of"),
        ("[{lr: 0.1, n_envs: 8}, {}, {n_envs: 8, lr: 0.1}]", "rows 1 and 3 of"),
        ("lr: []", "gives lr no value"),
        ("", "holds no grid"),
        ("[]", "holds no grid"),
        ("{}", "holds no grid"),
        ("[1, 2]", "holds no grid"),
        ("[{1: 2}]", "holds no grid"),
        ("7", "holds no grid"),
        ("lr: [1", "is no YAML"),
        ("\n".join(f"a{i}: [1, 2]" for i in range(40)), "has more than 1,000 rows"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    words = ("reproduce", NAME, "--grid", str(grid(tmp_path, text)), "--log_dir", str(tmp_path / "runs"))
    done = here(None, *words, status=USER_ERROR)
    assert sentence in one_sentence(done.stderr) and not done.stdout
    assert not (tmp_path / "runs").exists()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no file .*none\.yaml; give --grid a YAML or JSON file"):
        read_grid(tmp_path / "none.yaml", NAME)


def test_a_sweep_is_carried_out_here_and_reported_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)
    monkeypatch.setitem(EXPERIMENTS, "trial", TINY)
    file = grid(tmp_path, "gamma: [0.5, 0.9]")
    words = ("reproduce", "trial", "--seeds", "1", "--grid", str(file), "--log_dir", str(tmp_path / "runs"))
    assert "a trial: 1 seed for each of 2 settings" in here(None, *words).stdout
    found = {
        run.name: json.loads((run / "config.json").read_text())["config"]["policy"]["gamma"]
        for run in (tmp_path / "runs").glob("*-seed0")
    }
    assert found == {"trial-gamma=0.5-seed0": 0.5, "trial-gamma=0.9-seed0": 0.9}
    page = (tmp_path / "runs" / "trial-grid-report" / "report.html").read_text()
    assert "gamma" in page and "trial-gamma=0.9-seed0" in page
