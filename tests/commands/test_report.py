"""Reports about real runs, as short as can be, and about copies of them with parts that are changed or missing."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

import run
from commands.report import figures, model, sections, words
from commands.report.command import PAGE
from commands.report.markup import Report
from commands.report.references import REFERENCES, target
from commands.report.runs import Experiment, Missing, Run, experiments, judge, newest_values, over_seeds
from commands.run_folder import RunFolder
from drlhp.data.comparison import Choice, Comparison
from drlhp.networks.batches import PairBatch, TrainingPair
from drlhp.runtime.locks import in_use
from pref_db import PrefDB
from reward_predictor import preference_loss
from tests.support.browser import PROGRAM, WHY_NOT, chromium
from tests.support.commands import here, small_files
from tests.support.ring import predicted_reward
from tests.support.store import undo_last

DOT = "MovingDotNoFrameskip-v0"
N_LABELS = 30
LINE = (
    f"--synthetic_prefs --synchronous --n_envs 4 --million_timesteps 0.002 --n_initial_prefs 12 "
    f"--max_prefs {N_LABELS} --max_segs 60 --n_initial_epochs 2 --log_interval 5 "
    "--eval_interval_million_timesteps 0"
).split()
SECTIONS = (
    *("reward", "references", "predictor", "calibration", "correlation", "episode", "gallery", "timing", "speed"),
    "settings",
)
EVALUATIONS = "seconds,steps,labels,policy,episodes,mean,std,lowest,highest,mean_length,capped"


def train(folder: Path, name: str, *flags: str, mode: str = "train_policy_with_preferences") -> Path:
    """A run by the command line."""
    here(folder, mode, DOT, *LINE, *flags, "--run_name", name)
    return folder / name


pytestmark = pytest.mark.xdist_group("report")  # what they share is made once


def with_setting(run: Path, to: Path, section: str, name: str, value: object) -> Path:
    """A copy of a run with another setting, as if it had been trained with that."""
    shutil.copytree(run, to)
    record = json.loads((to / "config.json").read_text())
    values = record["config"][section] if section else record["config"]
    assert name in values
    values[name] = value
    (to / "config.json").write_text(json.dumps(record))
    return to


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs of all parts that differ in their seed."""
    folder = tmp_path_factory.mktemp("runs")
    first = train(folder, "seed0")
    return first, with_setting(first, folder / "seed1", "", "seed", 1)


@pytest.fixture(scope="module")
def on_true_rewards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs"), "true", mode="train_policy_with_original_rewards")


class Reported(NamedTuple):
    """A run, its files before there was a report about it, and its page."""

    run: Path
    before: dict[Path, bytes]
    page: Page


@pytest.fixture(scope="module")
def reported(seeds: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Reported:
    run = shutil.copytree(seeds[0], tmp_path_factory.mktemp("reported") / "dot")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    return Reported(run, before, page_of(run))


@pytest.fixture
def dot(seeds: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of a run, to write to and to damage."""
    return shutil.copytree(seeds[0], tmp_path / "dot")


def without(run: Path, *parts: str) -> Path:
    """Takes from a run what a test does not look at, and the report would spend its time on."""
    for part in parts:
        shutil.rmtree(run / part)
    return run


@pytest.fixture
def labelled(dot: Path) -> Path:
    """A copy of a run that has only its store and its predictor beside its tables."""
    return without(dot, "policy", "events")


@pytest.fixture
def tables(labelled: Path) -> Path:
    """A copy of a run that has only its store beside its tables."""
    return without(labelled, "reward_predictor")


class Page(HTMLParser):
    """A page as a browser reads it: its text by section, and all that it loads."""

    EMPTY = ("meta", "img", "br", "!doctype")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.sections: dict[str, str] = {}
        self.images: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self._open: list[tuple[str, str]] = []
        self.feed(self.source)
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.attributes += values.items()
        if tag == "img":
            self.images.append(values["src"])
        if tag not in self.EMPTY:
            self._open.append((tag, values.get("id", "")))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        for _, name in self._open:
            if name:
                self.sections[name] = self.sections.get(name, "") + data + " "


def report(*arguments: object) -> int:
    return run.main(["report", *map(str, arguments)])


def page_of(folder: Path, *flags: object) -> Page:
    """The page about a run, in its own folder."""
    assert report(folder, *flags) == 0
    return Page(folder / "report" / PAGE)


def write_progress(folder: Path, rewards: list[float], *, seconds: float = 3480, labels: int = N_LABELS) -> None:
    """Puts a made-up progress.csv in place of the run's: 1,000 agent steps for each mean reward."""
    (folder / "progress.csv").write_text(
        "seconds,steps,episodes,episode_return,labels,validation_accuracy\n"
        + "".join(
            f"{seconds * i / len(rewards)},{1000 * i - 1000}.0,{99 + i}.0,{reward},{labels * i // len(rewards)},0.75\n"
            for i, reward in enumerate(rewards, start=1)
        )
    )


def write_evaluations(folder: Path, *rows: str) -> None:
    (folder / "evaluations.csv").write_text("\n".join([EVALUATIONS, *rows]) + "\n")


# -- the page of one run -----------------------------------------------------------------------------------------------


def test_the_page_tells_what_the_run_did(reported: Reported) -> None:
    dot, before, page = reported
    after = {path for path in dot.rglob("*") if path.is_file() and dot / "report" not in path.parents}
    assert {path for path in after if not path.name.startswith("prefs.db-")} == before.keys()
    assert all(path.read_bytes() == content for path, content in before.items()), "a run is only read"

    with (dot / "progress.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    told = page.sections["verdict"]
    assert words.headline(Run.load(dot)) in told
    assert re.search(r"The agent (learned|learned a little|did not learn): true reward", told)
    assert f"{float(last['episode_return']):.1f} true reward in training" in told
    assert f"true reward {float(last['episode_return']):.1f} (last {float(last['episodes']):.0f} training" in told
    assert f"{float(last['steps']):,.0f} agent steps" in told and f"{N_LABELS} labels" in told
    assert f"{float(last['validation_accuracy']):.0%} of validation labels" in told

    for name in SECTIONS:
        assert name in page.sections
    assert 'class="missing"' not in page.source.split('id="timing"')[0], "every part of this run is there"
    assert "synthetic teacher answered" in page.sections["timing"]
    assert "Pearson" in page.sections["correlation"] and "Spearman" in page.sections["correlation"]
    assert "250 agent steps" in page.sections["episode"]
    settings = re.sub(r"\s+", " ", page.sections["settings"])
    assert f"--max_prefs {N_LABELS} 500" in settings, "what differs from the default"
    assert "--gamma" not in page.sections["settings"], "this one does not, for this environment"
    assert "Christiano" not in page.sections["references"] and "mrahtz" in page.sections["references"]


def test_the_page_is_one_file_that_loads_nothing(reported: Reported) -> None:
    dot, _, page = reported
    assert len(page.images) > 20 and all(source.startswith("data:image/") for source in page.images)
    assert len([source for source in page.images if source.startswith("data:image/gif")]) == 2 * model.GALLERY
    assert not [name for name, value in page.attributes if name in ("href", "srcset", "action") or "://" in value]
    assert not re.search(r"<(script|link|iframe|object)|@import|url\(", page.source)
    assert len(page.source) < 3e6
    assert "prefers-color-scheme: dark" in page.source and 'name="viewport"' in page.source
    files = {path.name for path in (dot / "report").iterdir()}
    listed = next(value for name, value in page.attributes if name == "content" and value.endswith(".png"))
    assert files == {PAGE, *listed.split()} and "reward-steps.png" in files and "calibration.png" in files
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (dot / "report").glob("*.png"))


@pytest.mark.parametrize(
    ("rewards", "evaluations", "expected"),
    [
        (
            [-0.6, 12.0, 19.0],
            ["3480,2000,20,deterministic,10,21,1,15,24,250,0", "3480,2000,20,sampled,10,19.3,2,15,22,250,0"],
            f"The agent learned: evaluation 19.3 (10 episodes), before -0.6, from {N_LABELS} labels in 58 minutes.",
        ),
        (
            [-0.6, 12.0, 19.0],
            ["9,0,12,sampled,10,1.5,2,0,3,250,0", "3480,2000,20,sampled,10,4,2,1,9,250,0"],
            "The agent learned a little: evaluation 4.0 (10 episodes), before 1.5, "
            f"from {N_LABELS} labels in 58 minutes.",
        ),
        (
            [-0.6, 12.0, 19.0],
            ["9,0,12,sampled,10,1.5,2,0,3,250,0", "3480,2000,20,sampled,10,1.9,2,1,9,250,0"],
            f"The agent did not learn: evaluation 1.9 (10 episodes), before 1.5, from {N_LABELS} labels in 58 minutes.",
        ),
        (  # stopped before its second evaluation
            [-0.6, 12.0, 20.5],
            ["9,0,12,deterministic,10,-4,2,-8,0,250,0", "9,0,12,sampled,10,1.5,2,0,3,250,0"],
            "The agent learned: true reward 20.5 (last 100 training episodes, no evaluation), before -0.6, "
            f"from {N_LABELS} labels in 58 minutes.",
        ),
        (
            [-0.6, 12.0, 18.9],
            [],
            "The agent learned: true reward 18.9 (last 100 training episodes, no evaluation), before -0.6, "
            f"from {N_LABELS} labels in 58 minutes.",
        ),
        ([math.nan, math.nan], [], "No episode has ended, so nothing is known about the true reward."),
        ([], [], f"The policy has not begun to learn, after {N_LABELS} labels."),
    ],
)
def test_the_verdict(dot: Path, rewards: list[float], evaluations: list[str], expected: str) -> None:
    write_progress(dot, rewards)
    if evaluations:
        write_evaluations(dot, *evaluations)
    assert words.headline(Run.load(dot)) == expected


def test_what_counts_as_learned() -> None:
    assert judge(-21, 19, 0.5, 1, 20.8) == "learned"
    assert judge(-21, -7.5, 0.5, 4, 20.8) == "learned a little", "less than half the way"
    assert judge(-21, -20.5, 0.3, 1, 20.8) == "did not learn", "within two standard errors"
    assert judge(20.9, 20.8, 0.1, 1, 20.8) == "learned", "it was there already"
    assert judge(10, 9, 0.1, 1, None) == "did not learn"
    assert judge(10, 12, 0.1, 1, None) == "learned" and judge(10, 10.5, 0.1, 1, None) == "learned a little"
    assert judge(10, 12, math.nan, math.nan, None) == "learned a little", "nobody knows what is much"
    assert judge(math.nan, 12, 0.1, 1, None) == judge(1, math.nan, 0.1, 1, 2) == "unknown"


def test_a_run_that_goes_on_is_told_so_and_left_alone(tables: Path) -> None:
    write_progress(tables, [-0.6, 12.0, 19.0])
    with (tables / "progress.csv").open("a") as file:
        file.write("3490,30")  # a row that is being written
    folder = RunFolder(tables)
    store = PrefDB.open(tables / "prefs.db")
    try:
        assert in_use(tables)
        first = next(iter(store.answers()))
        pair = Comparison(store.segment(first.a), store.segment(first.b), flip=False)
        store.add_answer(pair, Choice.EQUAL, teacher="synthetic", supersedes=first.seq)
        told = page_of(tables).sections["verdict"]
        assert "Still running, 2,000 of 2,000 agent steps. The agent has learned so far: true reward 19.0" in told
        assert undo_last(store, "synthetic") is not None, "the run can go on writing"
    finally:
        store.close()
        folder.close()
    assert not in_use(tables)
    RunFolder(tables).close()  # nobody else holds it


def test_a_run_that_was_stopped_by_an_error(tables: Path) -> None:
    with (tables / "log.txt").open("a") as file:
        file.write("2026-01-01 00:00:00,000 INFO command: run.py --resume dot\n")
        file.write("2026-01-01 00:00:01,000 ERROR the a2c process was killed by SIGKILL\n")
    told = page_of(tables).sections["verdict"]
    assert "Stopped before its end" in told and "It ended with an error: the a2c process was killed" in told


def test_names_are_escaped(labelled: Path) -> None:
    strange = labelled.rename(labelled.with_name("<b>a&b"))
    record = json.loads((strange / "config.json").read_text())
    record["command"] = ["run.py", "train_policy_with_preferences", DOT, "--run_name", "<b>a&b"]
    (strange / "config.json").write_text(json.dumps(record))
    page = page_of(strange)
    assert "--run_name '<b>a&b'" in page.sections["settings"], "the command can be given again"
    assert "<b>a&b" in page.sections["verdict"] and "<b>a" not in page.source
    run = Run.load(strange)
    assert figures.reward([Experiment(rf"{letter}: $\{letter}$", [run], {}) for letter in "AB"], "steps", ())


@pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT)
@pytest.mark.slow
def test_a_page_is_no_wider_than_a_phone(dot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commands.report.markup.git_revision", lambda: f"{'0123456789' * 4}+changes")
    with (dot / "log.txt").open("a") as file:
        file.write(f" INFO command: run.py --resume dot\n ERROR /{'a-folder-' * 9}/prefs.db cannot be read\n")
    long = dot.rename(dot.with_name("a_name_without_any_place_to_break_it_in_two"))
    page_of(long)
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.goto((long / "report" / PAGE).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == 390


# -- parts that are missing --------------------------------------------------------------------------------------------


def test_a_run_on_true_rewards(on_true_rewards: Path, tmp_path: Path) -> None:
    page = page_of(shutil.copytree(on_true_rewards, tmp_path / "true"))
    assert "from the true reward in" in page.sections["verdict"]
    for name in ("predictor", "calibration", "correlation", "gallery", "timing"):
        assert "learned from the true reward, so it has no" in page.sections[name]
    assert "No labels were used" in page.sections["reward"]
    assert "no predicted reward is drawn" in page.sections["episode"]
    files = {path.name for path in (tmp_path / "true" / "report").glob("*.png")}
    assert files == {"reward-steps.png", "episode.png", "speed.png", "speed-parts.png"}


def test_runs_without_a_policy(tmp_path: Path) -> None:
    labels = train(tmp_path, "labels", mode="gather_initial_prefs")
    page = page_of(labels)
    assert "12 labels gathered" in page.sections["verdict"]
    for name in ("reward", "episode", "speed"):
        assert "No policy is trained by this command." in page.sections[name]
    assert "no checkpoint of the reward predictor" in page.sections["correlation"]
    loading = ("--load_prefs_dir", str(labels))
    predictor = page_of(train(tmp_path, "predictor", *loading, mode="pretrain_reward_predictor"))
    assert "had 12 labels to learn from" in predictor.sections["verdict"]
    assert "Pearson" in predictor.sections["correlation"]


def test_what_is_missing_is_explained_and_the_rest_appears(dot: Path) -> None:
    for name in ("policy", "reward_predictor", "events"):
        shutil.rmtree(dot / name)
    for name in ("log.txt", "lock", "curves.png"):
        (dot / name).unlink()
    page = page_of(dot)
    reasons = {
        "predictor": "none was trained (yet)",
        "calibration": "no checkpoint of the reward predictor",
        "correlation": "no checkpoint of the reward predictor",
        "gallery": "no checkpoint of the reward predictor",
        "episode": "no checkpoint of the policy",
        "speed": "No speed has been measured",
    }
    for name, reason in reasons.items():
        assert reason in page.sections[name]
    assert (dot / "report" / "reward-steps.png").exists() and "--max_prefs" in page.sections["settings"]

    (dot / "prefs.db").write_bytes(b"damaged")
    (dot / "policy").mkdir()
    (dot / "policy" / "step-000000000001.pt").write_bytes(b"damaged")
    (dot / "progress.csv").unlink()
    page = page_of(dot)
    assert "damaged" in page.sections["episode"] and "prefs.db" in page.sections["calibration"]
    assert "No episode has ended yet" in page.sections["reward"]


def test_a_predictor_of_true_returns_has_no_cross_entropy_and_no_probabilities(
    dot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads((dot / "config.json").read_text())
    record["config"]["predictor"]["reward_target"] = "true_return"
    (dot / "config.json").write_text(json.dumps(record))
    monkeypatch.setattr(figures, "_png", lambda figure: figure.axes[0].get_ylabel().encode())
    loaded, page = Run.load(dot), Report()
    sections.predictor(page, loaded, "")
    assert page.files["loss.png"] == b"squared error of a clip's return"
    with pytest.raises(Missing, match="no probabilities"):
        sections.calibration(page, loaded, "")
    assert sections.correlation(page, loaded, "")


def test_settings_of_another_version(labelled: Path) -> None:
    path = labelled / "config.json"
    path.write_text(path.read_text().replace('"lr":', '"learning_speed":'))
    page = page_of(labelled)
    assert "another version" in page.sections["settings"] and "Pearson" in page.sections["correlation"]


@pytest.mark.parametrize("kind", ["nowhere", "empty", "damaged", "incomplete", "no predictor", "file", "none", "pipe"])
def test_what_is_no_run_is_one_sentence(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / kind
    contents = {"damaged": "{", "incomplete": '{"config": {"mode": "x"}}'}
    contents["no predictor"] = '{"config": {"mode": "gather_initial_prefs", "env_id": "CartPole-v1", "seed": 0}}'
    if kind in ("empty", "pipe", *contents):
        folder.mkdir()
    if kind in contents:
        (folder / "config.json").write_text(contents[kind])
    if kind == "pipe":
        os.mkfifo(folder / "config.json")
    if kind == "file":
        folder.write_text("")
    assert report(*([] if kind == "none" else [folder])) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("run.py: ") and len(error.splitlines()) == 1
    assert not (folder / "report").exists()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *(("command", None), ("machine", None), ("config policy", None), ("config predictor label_error_rate", None)),
        *(("command", "run.py"), ("machine", "mine"), ("versions", [1])),
    ],
)
def test_what_cannot_be_in_the_settings_is_one_sentence(
    dot: Path, place: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((dot / "config.json").read_text())
    *sections, name = place.split()
    values = record
    for section in sections:
        values = values[section]
    values[name] = value
    (dot / "config.json").write_text(json.dumps(record))
    assert report(dot) == 2
    file = dot / "config.json"
    assert capsys.readouterr().err == f"run.py: {file} is damaged (no {name} in it); restore it.\n"


# -- several runs ------------------------------------------------------------------------------------------------------


def test_seeds_are_one_experiment_with_its_spread(seeds: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = (without(shutil.copytree(folder, tmp_path / folder.name), "policy", "events") for folder in seeds)
    write_progress(first, [-1.0, 5.0, 18.0])
    write_progress(second, [1.0, 7.0, 20.0])
    output = tmp_path / "both"
    assert report(first, second, first, "--output", output) == 0
    page = Page(output / PAGE)
    rewards = "true reward 19.0 (lowest 18.0, highest 20.0), before 0.0"
    sentence = f"2 of 2 runs learned: {rewards}, from {N_LABELS} labels each."
    assert sentence in page.sections["verdict"]
    assert page.sections["runs"].count("seed0") == 1 and "seed1" in page.sections["runs"]
    assert f"{DOT}: seed0, seed 0, the middle one of 2" in page.sections["run"]
    assert f"run.py report {second}" in page.sections["others"]
    assert len(page.source) < 3e6

    (group,) = experiments([Run.load(first), Run.load(second)])
    common = over_seeds([member.curve("steps") for member in group.runs])
    assert common is not None
    grid, values = common
    assert grid[0] == 0 and grid[-1] == 2000
    assert values[0, 0] == -1 and values[1, -1] == 20 and np.allclose(values[1] - values[0], 2)


def test_several_runs_tell_their_verdicts_in_colour_and_which_stopped(seeds: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = (without(shutil.copytree(folder, tmp_path / folder.name), "policy", "events") for folder in seeds)
    write_progress(first, [-1.0, 5.0, 18.0])
    write_progress(second, [1.0, 1.0])
    with (second / "log.txt").open("a") as file:
        file.write("2026-01-01 00:00:00,000 INFO command: run.py --resume seed1\n")
        file.write("2026-01-01 00:00:01,000 ERROR the a2c process was killed by SIGKILL\n")
    assert report(first, second, "--output", tmp_path / "both") == 0
    page = Page(tmp_path / "both" / PAGE)
    assert '<span class="verdict good">1 of 2 learned</span>' in page.source
    assert '<span class="verdict bad">1 of 2 did not learn</span>' in page.source
    told = page.sections["verdict"]
    assert "1 of 2 runs learned, 1 did not learn, 1 stopped before its end: true reward 9.5" in told
    assert "seed1 ended with an error: the a2c process was killed by SIGKILL" in told
    assert f"{DOT}: The goal here is 20.0 (original implementation, true reward)." in told
    assert "Each mean covers the seeds that have come so far" in page.sections["reward"]


def test_different_experiments_stand_apart(
    seeds: tuple[Path, Path], on_true_rewards: Path, labelled: Path, tmp_path: Path
) -> None:
    second = without(shutil.copytree(seeds[1], tmp_path / "seed1"), "policy", "events")
    other = with_setting(labelled, tmp_path / "other", "policy", "lr", 0.001)
    true = without(shutil.copytree(on_true_rewards, tmp_path / "true"), "policy", "events")
    runs = (labelled, second, other, true)
    loaded = [Run.load(path) for path in runs]
    groups = experiments(loaded)
    assert [len(group.runs) for group in groups] == [2, 1, 1]
    assert [group.name for group in groups] == [
        "A: preferences, lr 0.003",
        "B: preferences, lr 0.001",
        "C: true reward, lr 0.003",
    ]
    assert report(*runs, "--output", tmp_path / "all") == 0
    page = Page(tmp_path / "all" / PAGE)
    assert page.source.count("<h1>") == 3 and "A: preferences, lr 0.003. " in page.sections["verdict"]
    assert "--lr 0.003 0.001 0.003" in re.sub(r"\s+", " ", page.sections["runs"])
    assert {"predictor-1", "predictor-2", "predictor-3"} <= page.sections.keys()
    assert len(page.source) < 3e6


def test_curves_of_seeds_meet_on_a_common_grid() -> None:
    a = (np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 20.0]))
    b = (np.array([5.0, 15.0]), np.array([1.0, 3.0]))
    common = over_seeds([a, b])
    assert common is not None
    grid, values = common
    assert grid[0] == 0 and grid[-1] == 20 and np.allclose(values[0], grid)
    assert values[1].mask.tolist() == ((grid < 5) | (grid > 15)).tolist(), "a short run hides nothing of the others"
    assert values[1].compressed()[0] == pytest.approx(1, abs=0.02)
    assert over_seeds([a]) is None
    assert over_seeds([a, (np.array([30.0]), np.array([0.0]))]) is None, "a point is no curve"


def test_experiments_go_by_their_folders_and_by_settings_that_old_runs_lack(
    seeds: tuple[Path, Path], tmp_path: Path
) -> None:
    old, new = (shutil.copytree(folder, tmp_path / f"usual-{folder.name}") for folder in seeds)
    record = json.loads((old / "config.json").read_text())
    del record["config"]["predictor"]["label_buffer"]
    (old / "config.json").write_text(json.dumps(record))
    other = shutil.copytree(new, tmp_path / "no-buffer-seed0")
    record = json.loads((other / "config.json").read_text())
    record["config"]["predictor"]["label_buffer"] = 1
    (other / "config.json").write_text(json.dumps(record))
    groups = experiments([Run.load(path) for path in (old, new, other)])
    assert [(group.name, len(group.runs)) for group in groups] == [("A: usual", 2), ("B: no-buffer", 1)]


def test_a_resumed_run_counts_its_newest_values() -> None:
    x, y = newest_values(np.array([0.0, 0, 10, 20, 10, 30]), np.array([np.nan, 1, 2, 3, 4, 5]))
    assert x.tolist() == [0, 10, 30] and y.tolist() == [1, 4, 5]


def test_curves_of_a_run_that_came_back_behind_itself_do_not_go_back(tmp_path: Path) -> None:
    values_of = {"1": {50: 0.5, 100: 0.4, 150: 0.3}, "2": {50: 0.6, 100: 0.2}}  # killed at 150, and gone on with from 0
    for name, values in values_of.items():
        with SummaryWriter(str(tmp_path / name)) as writer:
            for step, value in values.items():
                writer.add_scalar("loss", value, step)
        # A resumed run's file has a later name, because it begins seconds later.
        (file,) = (tmp_path / name).iterdir()
        file.rename(tmp_path / f"events.out.tfevents.{name}")
    steps, values_kept = model.scalars(tmp_path)["loss"]
    assert steps.tolist() == [50, 100] and np.allclose(values_kept, [0.6, 0.2])


# -- where it is written -----------------------------------------------------------------------------------------------


def test_only_a_report_is_overwritten(labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page_of(labelled)
    shutil.rmtree(labelled / "reward_predictor")
    page_of(labelled)
    files = {path.name for path in (labelled / "report").iterdir()}
    assert "reward-steps.png" in files and "calibration.png" not in files, "a figure of the old report is no more"

    (labelled / "report" / "calibration.png").write_bytes(b"mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    assert report(labelled, "--output", tmp_path / "mine") == 2
    assert report(labelled, "--output", tmp_path / "file") == 2
    assert report(labelled, "--output", tmp_path / "file" / "new") == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 3 and "holds other files than a report" in errors[0] and "is a file" in errors[1]
    assert errors[2] == f"run.py: --output {tmp_path / 'file'} is a file; give the name of a new folder."
    assert (tmp_path / "file").read_text() == "mine"
    page_of(labelled)
    assert (labelled / "report" / "calibration.png").read_bytes() == b"mine"


def test_a_report_that_a_full_disk_ended_can_be_made_again(labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A limit on the size of files stands in for a full disk: figures fit, the page with all of them does not."""
    page_of(labelled)
    folder = labelled / "report"
    size = (folder / PAGE).stat().st_size
    assert all(figure.stat().st_size < size for figure in folder.glob("*.png"))
    shutil.rmtree(folder)
    with small_files(size - 1):
        assert report(labelled) == 2
    errors = capsys.readouterr().err
    assert "the disk is full" in errors or "free some space on its disk" in errors, errors
    assert "Traceback" not in errors and not (folder / PAGE).exists()
    assert page_of(labelled).sections["verdict"]


def test_a_figure_of_somebody_else_is_not_overwritten(labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.move(labelled / "reward_predictor", labelled / "away")
    page = page_of(labelled).source
    shutil.move(labelled / "away", labelled / "reward_predictor")
    (labelled / "report" / "calibration.png").write_bytes(b"mine")
    assert report(labelled) == 2
    assert "calibration.png is not of a report" in capsys.readouterr().err
    assert (labelled / "report" / "calibration.png").read_bytes() == b"mine"
    assert (labelled / "report" / PAGE).read_text() == page


# -- arithmetic --------------------------------------------------------------------------------------------------------


def test_calibration_bins() -> None:
    edges = np.array([0.0, 0.5, 1.0])
    bins = model.calibration(np.array([0.1, 0.3, 0.5, 1.0, 0.9]), np.array([0.0, 1, 1, 0.5, 0]), edges)
    assert [(b.count, b.predicted, b.observed) for b in bins] == [
        (2, pytest.approx(0.2), 0.5),
        (3, pytest.approx(0.8), 0.5),
    ]
    assert model.calibration_error(bins) == pytest.approx((2 * 0.3 + 3 * 0.3) / 5)
    assert len(model.calibration(np.array([0.2]), np.array([1.0]), edges)) == 1, "empty bins are left out"
    edge = np.array([0.05, 0.95])  # what the loss can say at most
    assert sum(b.count for b in model.calibration(edge, edge, model.CALIBRATION_EDGES)) == 2


def test_correlations() -> None:
    x, y = np.array([1.0, 2, 3, 4]), np.array([1.0, 4, 9, 100])
    assert model.ranks(np.array([10.0, 5, 10, 1])).tolist() == [3.5, 2, 3.5, 1]
    assert model.pearson(x, 2 * x + 1) == pytest.approx(1) and model.pearson(x, -x) == pytest.approx(-1)
    assert model.pearson(x, y) == pytest.approx(151 / math.sqrt(5 * 6849))  # by hand
    assert model.spearman(x, y) == pytest.approx(1)
    assert model.spearman(np.array([1.0, 2, 2, 3]), np.array([1.0, 3, 2, 4])) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert math.isnan(model.pearson(x, np.ones(4))) and math.isnan(model.spearman(np.ones(4), x))
    assert math.isnan(model.pearson(x[:1], y[:1]))


def test_probabilities_are_those_of_the_loss(dot: Path) -> None:
    probabilities, answers = model.label_probabilities(Run.load(dot))
    predictor = model.predictor_of(Run.load(dot))
    with model.store(Run.load(dot)) as db:
        labels = [label for label in db.labels() if label.validation]
        pairs = [TrainingPair(label, db.stored_segment(label.a), db.stored_segment(label.b), (1,)) for label in labels]
        batch = PairBatch.decode(pairs, predictor.n_frames)
    with torch.inference_mode():
        losses = preference_loss(*batch.returns(predictor(batch.observations, batch.actions)), batch.mu, 0.1)[0].numpy()
    ours = -(answers * np.log(probabilities) + (1 - answers) * np.log(1 - probabilities))
    assert len(labels) > 0 and np.allclose(ours, losses, atol=1e-4)


def test_returns_of_segments_are_those_that_the_policy_gets(dot: Path) -> None:
    loaded = Run.load(dot)
    scored = model.scored_segments(loaded)
    predictor = model.predictor_of(loaded)
    assert len(scored.ids) == scored.n_stored == len(set(scored.ids)) > model.SEGMENTS_PER_BATCH
    with model.store(loaded) as db:
        for i in (0, len(scored.ids) - 1):
            segment = db.segment(scored.ids[i])
            assert scored.true[i] == segment.rewards.sum()
            expected = predicted_reward(predictor, segment.stacked().copy(), segment.actions).sum()
            assert scored.predicted[i] == pytest.approx(expected, abs=1e-3)
    liked, disliked = model.gallery(loaded, scored)
    assert liked[0].predicted == scored.predicted.max() and disliked[0].predicted == scored.predicted.min()
    assert len(liked) == len(disliked) == model.GALLERY and liked[0].frames.shape[1:] == (84, 84, 3)


def test_the_time_that_people_take(tables: Path) -> None:
    with pytest.raises(Missing, match="synthetic teacher"):
        model.answer_seconds(Run.load(tables))
    db = PrefDB.open(tables / "prefs.db")
    segments = list(db.segments())
    for i, seconds in enumerate((3.0, 4.0, 9.0, 50.0)):
        pair = Comparison(segments[0], segments[i + 1], flip=False)
        db.add_answer(pair, Choice.A, teacher="person", shown_at=1000.0, answered_at=1000.0 + seconds)
    assert undo_last(db, "person") is not None
    db.close()
    assert model.answer_seconds(Run.load(tables)).tolist() == [3, 4, 9]
    assert "3 answers: median 4.0 s" in page_of(tables).sections["timing"]


def test_every_reference_says_where_it_is_from() -> None:
    for env_id, references in REFERENCES.items():
        assert all(len(reference.source) > 10 for reference in references)
        assert sum(reference.is_target for reference in references) <= 1
        assert not [r for r in references if r.is_target and r.not_comparable], env_id
    mark = target("CartPole-v1")
    assert mark is not None and mark.reward == 475, "Gymnasium's own"
    for game in ("BeamRider", "Breakout", "Pong", "Qbert", "Seaquest", "SpaceInvaders", "Enduro"):  # figure 3
        papers = [r for r in REFERENCES[f"{game}NoFrameskip-v4"] if r.who.startswith("paper")]
        assert {0, 5500} < {r.labels for r in papers} and target(f"{game}NoFrameskip-v4") is not None, game
    assert target("InvertedDoublePendulum-v1") is None, "its episodes are shorter here"
    person = target("EnduroNoFrameskip-v4")  # evaluations play whole games
    assert person is not None and person.reward == 690
