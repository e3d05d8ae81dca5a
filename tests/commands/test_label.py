"""Labelling without a trainer: beside a run that goes on, and after it."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, combinations, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands.environments import lend_environments
from drlhp.cli import label
from drlhp.cli.label import LabelConfig, free_name, give_settings, give_task, label_command
from drlhp.data.comparison import Comparison
from drlhp.data.segment import Segment
from drlhp.errors import UserError
from drlhp.label_server.config import PageConfig
from drlhp.labelling.answers import Submission
from drlhp.labelling.gatherers import Answered, QueueGatherer, SyntheticGatherer, TeacherGatherer
from drlhp.labelling.notices import Notices
from drlhp.labelling.queue import LabelQueue
from drlhp.labelling.reliability import Vote, error_rates, shared_votes
from drlhp.labelling.teachers import SyntheticTeacher, synthetic_teacher
from pref_db import PrefDB
from tests.support.commands import DEADLINE, DOT, here, started, wait_for
from tests.support.labelling import ENV_ID, STEPS, segment


def test_when_the_run_beside_has_ended_what_it_left_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label, "LOOK_SECONDS", 0.0)
    with contextlib.closing(PrefDB.create(tmp_path / "prefs.db", ENV_ID, STEPS)) as db:
        db.add_segments([segment(0), segment(1)])
        looks = 0

        def run_goes_on() -> bool:
            nonlocal looks
            looks += 1
            if looks <= 3:
                assert db.n_answers() == 0, "while it goes on, the run asks"
            if looks == 3:
                db.add_segments([segment(2)])  # its last one
            return looks < 3

        label.label(db, SyntheticGatherer(db, SyntheticTeacher()), LabelConfig("run"), run_goes_on=run_goes_on)
        assert looks >= 3 and db.n_answers() == 3


@pytest.mark.parametrize("damaged", [1, 3])
def test_segments_that_cannot_be_read_are_passed_over(tmp_path: Path, damaged: int) -> None:
    """Also the very first one, by which it is checked whether the store can be labelled at all."""
    with contextlib.closing(store(tmp_path, [small(seed) for seed in range(4)])) as db:
        bad = db.segment_ids()[:damaged]
        with db.transaction() as connection:
            connection.executemany("UPDATE segment SET arrays = x'00' WHERE id = ?", [(name,) for name in bad])
    lend_environments()
    here(None, "label", str(tmp_path), "--teacher", "oracle")
    with contextlib.closing(PrefDB.open(tmp_path / "prefs.db", read_only=True)) as db:
        asked = [ids for answer in db.answers() for ids in (answer.a, answer.b)]
        whole = 4 - damaged
        assert db.n_answers() == whole * (whole - 1) // 2 and not set(asked) & set(bad)


def test_a_store_without_a_segment_that_can_be_read_is_told(tmp_path: Path) -> None:
    with (
        contextlib.closing(store(tmp_path, [small(seed) for seed in range(2)])) as db,
        db.transaction() as connection,
    ):
        connection.execute("UPDATE segment SET arrays = x'00'")
    with pytest.raises(UserError, match="no segment of it can be read; restore it from a copy"):
        label_command([str(tmp_path), "--teacher", "oracle"])


def test_the_goal_of_a_run_that_has_ended_holds_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label, "LOOK_SECONDS", 0.0)
    with contextlib.closing(store(tmp_path, [small(seed) for seed in range(3)])) as db:
        queue = LabelQueue(db)
        queue.notices.set_setting("goal", "1")
        queue.submit(all_pairs(2))
        queue.notices.set_setting("initial_labels", "500")
        looks = chain((True, False), repeat(False))
        label.label(db, teacher_of(db, "oracle"), LabelConfig("run"), run_goes_on=lambda: next(looks))
        assert db.n_labels() == 3, "each pair, though the run wanted one label"
        assert queue.notices.setting("initial_labels") == "0"


def test_the_goal_of_another_who_labels_ends_this_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is given pairs beyond it."""
    monkeypatch.setattr(label, "LOOK_SECONDS", 0.0)
    with contextlib.closing(store(tmp_path, [small(seed) for seed in range(4)])) as db:
        Notices(db).set_setting("goal", "2")
        label.label(db, teacher_of(db, "oracle"), LabelConfig("run"), run_goes_on=lambda: False)
        assert db.n_labels() == 2


@pytest.mark.parametrize("goal", [None, 1])
def test_the_page_stays_until_a_second_opinion_is_given(tmp_path: Path, goal: int | None) -> None:
    with contextlib.closing(store(tmp_path, [small(0), small(1)])) as db:
        queue = LabelQueue(db)
        queue.submit(all_pairs(2), need=2)
        leases = {name: queue.claim(name)[0] for name in ("Ann", "Bob")}
        turns = iter(("Ann", "", "", "", "Bob"))  # where it is empty, both look at their clips

        class OnThePage(QueueGatherer):
            def drain(self) -> list[Answered]:
                if name := next(turns, ""):
                    assert name == "Ann" or queue.notices.heartbeats()["label"][1]["status"] == label.WITH_OTHERS
                    token, pair = leases[name].token, leases[name].comparison_id
                    queue.answers.add(Submission(token, token, pair, name, "left", shown_at=1.0, answered_at=2.0))
                return super().drain()

        config = LabelConfig("run", ui="web", max_prefs=goal)
        label.label(db, OnThePage(db, "label"), config, run_goes_on=lambda: False)
        assert [row.labeller for row in queue.answers.history()] == ["Bob", "Ann"]


def test_a_run_that_comes_back_asks_itself_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label, "LOOK_SECONDS", 0.0)
    with contextlib.closing(store(tmp_path, [small(seed) for seed in range(12)])) as db:
        gatherer, asked = teacher_of(db, "oracle"), list[int]()

        def run_goes_on() -> bool:
            asked.append(len(db.asked()))
            return 10 <= len(asked) < 20

        label.label(db, gatherer, LabelConfig("run"), run_goes_on=run_goes_on)
        assert asked[9] == asked[19] < db.n_labels() == 66, "the pairs are the run's to choose while it is there"


class Told(SyntheticGatherer):
    """Keeps what it is told, and never answers."""

    said: tuple[str, dict[str, Any]] = "", {}

    def tell(self, status: str, state: dict[str, Any]) -> None:
        self.said = status, state


def label_beside(db: PrefDB, *looks: Callable[[str, dict[str, Any]], None]) -> None:
    """Labels beside a run that goes on for so many looks at it, each of which is given what was told last."""
    gatherer, left = Told(db, SyntheticTeacher()), iter(looks)

    def run_goes_on() -> bool:
        look = next(left, None)
        if look is not None:
            look(*gatherer.said)
        return look is not None

    label.label(db, gatherer, LabelConfig("run"), run_goes_on=run_goes_on)
    assert next(left, None) is None


def test_who_labels_beside_a_run_that_asks_nobody_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(label, "SILENT_SECONDS", 0.0)
    with contextlib.closing(store(tmp_path, [small(0)])) as db:

        def hears_nothing(words: str, _: dict[str, Any]) -> None:
            assert "asks no people" in words
            monkeypatch.setattr(label, "SILENT_SECONDS", 60.0)
            Notices(db).beat("run", {})

        def hears(words: str, _: dict[str, Any]) -> None:
            assert "Waiting for the run to ask" in words, "it has been heard of"

        label_beside(db, lambda *_: None, hears_nothing, hears)


def test_who_helps_a_run_is_told_what_the_run_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label, "LOOK_SECONDS", 0.0)
    with contextlib.closing(store(tmp_path, [small(0)])) as db:

        def run_tells(*_: object) -> None:
            numbers = {"labels": 30, "goal": 5500, "initial_labels": 500, "clips": 1}
            Notices(db).beat("run", {"status": "Waiting for clips from the agent (1 of 2)", **numbers})

        def is_told(words: str, numbers: dict[str, Any]) -> None:
            assert words == "Waiting for clips from the agent (1 of 2)"
            assert numbers == {"labels": 30, "goal": 5500, "initial_labels": 500}, "so that it may be started"

        label_beside(db, run_tells, is_told)


def test_beside_a_run_there_may_be_no_segments_yet(tmp_path: Path) -> None:
    with contextlib.closing(PrefDB.create(tmp_path / "prefs.db", ENV_ID, STEPS)) as db:
        label.check_segments(db, None, beside=True)
        with pytest.raises(UserError, match="holds 0 segments"):
            label.check_segments(db, None, beside=False)


def test_two_who_do_not_say_who_they_are_are_not_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(store(tmp_path, [small(0)])) as db:
        queue = LabelQueue(db)
        queue.submit(all_pairs(4))
        assert free_name(queue, "me") == "me" and not capsys.readouterr().out
        assert free_name(queue, "me") == "me-2", "though nobody has a pair yet"
        for name in ("me", "me-2"):
            queue.claim(name)
        assert free_name(queue, "me") == "me-3"
        assert "you are me-3; --labeller says who you are" in capsys.readouterr().out


def test_pairs_are_repeated_for_a_teacher_in_the_queue(tmp_path: Path) -> None:
    store(tmp_path, [small(seed) for seed in range(12)]).close()
    label_command([str(tmp_path), "--teacher", "oracle"])
    with contextlib.closing(PrefDB.open(tmp_path / "prefs.db")) as db:
        kinds = Counter(kind for (kind,) in db.read("SELECT kind FROM lease"))
    assert kinds["normal"] == 66 and kinds["repeat"] >= 2, "a share of 5 %"


def test_a_store_without_a_task_gets_the_environments(tmp_path: Path) -> None:
    lend_environments()  # as run.py does before its commands
    with contextlib.closing(PrefDB.create(tmp_path / "prefs.db", ENV_ID, STEPS)) as db:
        queue = LabelQueue(db)
        give_task(db)
        assert "dot" in (queue.notices.setting("task") or "")
        queue.notices.set_setting("task", "Keep left.")
        give_task(db)
        assert queue.notices.setting("task") == "Keep left."


# -- teachers who answer through the queue -----------------------------------------------------------------------------


def store(folder: Path, segments: Sequence[Segment]) -> PrefDB:
    folder.mkdir(exist_ok=True)
    db = PrefDB.create(folder / "prefs.db", segments[0].env_id, STEPS)
    db.add_segments(segments)
    return db


def small(seed: int) -> Segment:
    """Vectors, quick to store, that nobody could be shown."""
    rng = np.random.default_rng(seed)
    states, rewards = rng.normal(size=(STEPS, 2)).astype(np.float32), rng.normal(size=STEPS).astype(np.float32)
    return Segment("CartPole-v1", states, np.zeros(STEPS, np.int64), rewards, 1, policy_step=0, seed=seed, fps=50.0)


def all_pairs(n_segments: int) -> list[Comparison]:
    return [Comparison(a, b, flip=False) for a, b in combinations([small(seed) for seed in range(n_segments)], 2)]


def teacher_of(db: PrefDB, name: str, seed: int = 0, labeller: str | None = None) -> TeacherGatherer:
    return TeacherGatherer(db, synthetic_teacher(name, np.random.default_rng()), labeller or name, seed)


def preferred(db: PrefDB) -> dict[str, tuple[str, str | None]]:
    """What was answered about each pair, by segments and not by sides."""
    return {id: rest for id, *rest in db.read("SELECT comparison_id, choice, preferred FROM answer")}  # type: ignore[misc]


def test_a_teacher_in_the_queue_gives_the_labels_that_it_gives_by_itself(tmp_path: Path) -> None:
    segments = [segment(seed) for seed in range(11)]
    segments.append(replace(segments[0], actions=1 - segments[0].actions))  # another clip of the same return
    store(tmp_path / "queue", segments).close()
    label_command([str(tmp_path / "queue"), "--teacher", "oracle", "--max_prefs", "40"])
    label_command([str(tmp_path / "queue"), "--teacher", "oracle", "--seed", "1"])
    with (
        contextlib.closing(store(tmp_path / "direct", segments)) as direct,
        contextlib.closing(PrefDB.open(tmp_path / "queue" / "prefs.db")) as db,
    ):
        label.label(direct, SyntheticGatherer(direct, SyntheticTeacher()), LabelConfig(""), run_goes_on=lambda: False)
        assert preferred(db) == preferred(direct) and len(preferred(db)) == direct.n_answers() == 66
        columns = "teacher, answer.labeller, late, answer.shown_left = segment_b, flip, choice"
        tables = "answer JOIN lease ON token = lease_token JOIN comparison ON comparison.id = answer.comparison_id"
        rows = db.read(f"SELECT {columns} FROM {tables} WHERE kind = 'normal'")
        assert len(rows) == 66 and {row[:3] for row in rows} == {("oracle", "oracle", 0)}
        sides = Counter(row[3] for row in rows)
        assert min(sides[0], sides[1]) >= 20 and all(row[3] == row[4] for row in rows), "either clip may be on the left"
        assert [row[5] for row in rows].count("equal") == 1
        assert len(LabelQueue(db).answers.history("oracle", limit=99)) == db.n_answers(), "as it is of people"


def test_what_a_teacher_leaves_to_chance_depends_on_the_seed_and_not_on_the_order(tmp_path: Path) -> None:
    found = []
    for number, (seed, by_priority) in enumerate(((0, 1), (0, -1), (1, 1))):
        with contextlib.closing(store(tmp_path / str(number), [small(0)])) as db:
            for i, pair in enumerate(all_pairs(12)):
                LabelQueue(db).submit([pair], priority=by_priority * i)
            label.label(db, teacher_of(db, "stoc", seed), LabelConfig(""), run_goes_on=lambda: False)
            found.append(preferred(db))
    assert len(found[0]) == 66 and found[0] == found[1] != found[2]
    assert list(found[0]) == list(reversed(found[1]))


def test_the_mistakes_of_a_teacher_are_found_where_others_label_the_same_pairs(tmp_path: Path) -> None:
    with contextlib.closing(store(tmp_path, [small(0)])) as db:
        LabelQueue(db).submit(all_pairs(18), need=3)
        for gatherer in (
            teacher_of(db, "oracle"),
            teacher_of(db, "mistake"),
            teacher_of(db, "oracle", labeller="second"),
        ):
            label.label(db, gatherer, LabelConfig(""), run_goes_on=lambda: False)
        votes = [Vote(name, pair, segment_id) for _, name, pair, segment_id in db.labellers() if segment_id]
        answered = {
            name: {vote.comparison_id: vote.preferred for vote in votes if vote.labeller == name}
            for name in ("oracle", "mistake", "second")
        }
    assert [len(answers) for answers in answered.values()] == [153] * 3 and answered["oracle"] == answered["second"]
    wrong = sum(answered["mistake"][pair] != right for pair, right in answered["oracle"].items()) / 153
    assert 0.03 < wrong < 0.2
    rates = error_rates(shared_votes(votes))
    assert rates == pytest.approx({"oracle": 0, "second": 0, "mistake": wrong}, abs=0.01)


def test_what_a_teacher_skips_is_passed_on(tmp_path: Path) -> None:
    segments = [replace(small(seed), rewards=np.full(STEPS, seed, np.float32)) for seed in range(1, 5)]
    with contextlib.closing(store(tmp_path, segments)) as db:
        skips = TeacherGatherer(db, synthetic_teacher("skip", np.random.default_rng(), skip=9), "skip", seed=0)
        label.label(db, skips, LabelConfig(""), run_goes_on=lambda: False)
        answers = db.read("SELECT choice, teacher, labeller FROM answer")
        assert answers == [("incomparable", "skip(skip=9)", "skip")] * 6 and db.n_labels() == 0


def test_who_joins_leaves_the_settings_of_who_labels_already(tmp_path: Path) -> None:
    with contextlib.closing(store(tmp_path, [small(0)])) as db:
        queue = LabelQueue(db)
        first = LabelConfig("run", max_prefs=50, page=PageConfig(repeat_share=0.3, keep_clips=7))
        give_settings(queue, first, beside=False)
        queue.notices.beat("label", {"status": "Label 1 of 50"})
        give_settings(queue, LabelConfig("run", page=PageConfig(overlap_share=0.5)), beside=False)
        names = ("goal", "repeat_share", "keep_clips", "overlap_share")
        assert [queue.notices.setting(name) for name in names] == ["50", "0.3", "7", "0.5"], "but for what they name"
        queue.notices.beat("label", {"ended": "Labelling has ended here."})
        give_settings(queue, LabelConfig("run"), beside=False)
        assert queue.notices.setting("goal") == "0", "after it, the next one's hold"


def test_beside_somebody_else_no_pair_is_asked_twice(tmp_path: Path) -> None:
    with contextlib.closing(store(tmp_path, [small(0)])) as db:
        queue = LabelQueue(db)
        queue.submit(all_pairs(8))
        gatherer = teacher_of(db, "oracle")
        while leases := queue.claim("Ann", 2):
            gatherer.drain()
            about = (leases[0].token, leases[0].comparison_id, "Ann", "equal", time.time(), time.time())
            queue.answers.add(Submission(uuid.uuid4().hex, *about))  # type: ignore[arg-type]
        answered = db.read("SELECT comparison_id, labeller, teacher FROM answer")
    assert len(answered) == len({row[0] for row in answered}) == 28
    by = Counter(row[1:] for row in answered)
    assert by.keys() == {("Ann", "person"), ("oracle", "oracle")} and min(by.values()) > 10


def test_a_teacher_answers_what_a_run_asks_of_people(tmp_path: Path) -> None:
    folder, name = tmp_path / "a", "examples.dot_left:to_the_left"
    words = ("gather_initial_prefs", DOT, "--n_envs", "2", "--n_initial_prefs", "12", "--ui", "web", "--web_port", "0")

    def has_asked() -> bool:
        if not (folder / "prefs.db").exists():
            return False
        with contextlib.closing(PrefDB.open(folder / "prefs.db", read_only=True)) as db:
            return len(db.segment_ids()) >= 2

    with started(tmp_path, *words, "--run_name", "a") as process:
        wait_for(has_asked, process)
        done = here(None, "label", str(folder), "--max_prefs", "12", "--teacher", name)
        assert "12 more than at the start" in done.stdout
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, output
    with contextlib.closing(PrefDB.open(folder / "prefs.db", read_only=True)) as db:
        assert db.n_labels() == 12 and {row.teacher for row in db.answers()} == {name}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--teacher", "orakel"), "oracle, stoc"),
        (("--teacher", "oracle", "--ui", "web"), "leave --ui and the page's flags out"),
        (("--teacher", "oracle", "--task", "Keep left"), "leave --ui and the page's flags out"),
        (("--teacher", "oracle"), "holds no true reward but 0"),
        (("--teacher", "builtins:repr"), "it must return numbers"),
    ],
)
def test_a_teacher_that_cannot_answer_is_one_sentence(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    store(tmp_path, [replace(small(seed), rewards=np.zeros(STEPS, np.float32)) for seed in range(3)]).close()
    with pytest.raises(UserError, match=expected) as raised:
        label_command([str(tmp_path), *words])
    assert "\n" not in str(raised.value)
    with contextlib.closing(PrefDB.open(tmp_path / "prefs.db")) as db:
        assert db.n_answers() == 0 and LabelQueue(db).counts().leased == 0, "nothing is kept from others"
