"""Clips that repeat: whoever needs more different ones than there are says so and ends."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from drlhp import ChildError, HumanPreferencesEnvWrapper
from drlhp.data.asked import Asked
from drlhp.data.candidate import Candidate
from drlhp.errors import UserError
from drlhp.labelling.answers import Submission
from drlhp.labelling.gatherers import QueueGatherer
from drlhp.queries.pool import IN_VAIN
from drlhp.screens.gatherer import PersonGatherer
from pref_interface import PrefsConfig
from tests.support.asking import FakeWindow, Ring, segment, step_until
from tests.support.commands import SYNC, here

SAME, FEW = "tests.support.faulty:Same-v0", "tests.support.faulty:Few-v0"
CLIPS = ("--clip_steps", "3", "--n_envs", "1", "--max_segs", "12", SYNC)
ASKED = ("--synthetic_prefs", "--n_initial_prefs", "9", "--max_prefs", "12")


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    ring = Ring(tmp_path)
    yield ring
    ring.close()


def offer(ring: Ring, *seeds: int) -> None:
    for seed in seeds:
        ring.channels.segments.put_nowait(Candidate(segment(seed)))


@pytest.mark.parametrize("selection", ["random", "ordering"])
def test_before_training_clips_that_repeat_end_the_run_with_the_labels_that_there_are(
    ring: Ring, selection: str
) -> None:
    config = PrefsConfig(n_initial_prefs=9, max_prefs=9, max_segs=6, query_selection=selection)  # type: ignore[arg-type]
    interface = ring.interface(config=config, goal=9)
    with pytest.raises(UserError, match=r"only 3 different ones.* no more than [23] labels of 9: .* fewer initial"):
        for _ in range(2 * IN_VAIN):
            offer(ring, 0, 1, 2)
            interface.step()
    assert interface.db.n_labels() == (3 if selection == "random" else 2), "two answers put three in order"
    why = "whose pairs were all asked" if selection == "random" else "of which no new pair was found"
    assert interface.clips() == f"6/6 (3 different, {why})"


def test_new_clips_that_come_at_last_are_asked_about(ring: Ring) -> None:
    interface = ring.interface(n_initial=1, goal=1, max_segs=4)
    for _ in range(IN_VAIN // 2 - 5):
        offer(ring, 0, 0)
        interface.step()
    offer(ring, 1)
    step_until(interface, lambda: interface.n_labels == 1)


def test_a_person_answers_all_pairs_that_there_are_before_the_run_ends(ring: Ring) -> None:
    interface = ring.interface(QueueGatherer, n_initial=9, goal=9, max_segs=6)
    assert isinstance(interface.gatherer, QueueGatherer)
    for _ in range(IN_VAIN // 3 + 1):
        offer(ring, 0, 1, 2)
        interface.step()
    assert len(interface.gatherer.pending) == 3
    page = interface.gatherer.queue
    for lease in page.claim("ann", 3):
        page.answers.add(Submission(lease.token, lease.token, lease.comparison_id, "ann", "left", 1.0, 2.0))
    with pytest.raises(UserError, match="only 3 different ones"):
        for _ in range(IN_VAIN):
            offer(ring, 0, 1, 2)
            interface.step()
    assert interface.db.n_labels() == 3


def test_while_the_policy_trains_it_goes_on_without_labels_and_that_is_said_once(
    ring: Ring, capsys: pytest.CaptureFixture[str]
) -> None:
    interface = ring.interface(goal=9, max_segs=6)
    ring.channels.agent_steps.value = 1
    for _ in range(IN_VAIN // 2 + 20):  # it is said when it has got IN_VAIN clips, and not again
        offer(ring, 0, 1)
        interface.step()
    assert capsys.readouterr().out.count("only 2 different ones") == 1 and interface.n_labels == 1


@pytest.mark.parametrize("env_id", [SAME, FEW])
@pytest.mark.parametrize("mode", ["train_policy_with_preferences", "gather_initial_prefs", "keep"])
def test_every_mode_ends_with_a_sentence(tmp_path: Path, env_id: str, mode: str) -> None:
    if mode == "keep":
        said = here(tmp_path, "gather_initial_prefs", env_id, *CLIPS, "--no_gather_prefs", status=1).stderr
        assert f"no more than {1 if env_id == SAME else 3} different ones of 12" in said
    else:
        said = here(tmp_path, mode, env_id, *CLIPS, *ASKED, status=1).stderr
        assert ("all the same" if env_id == SAME else "only 3 different ones") in said
        assert f"no more than {0 if env_id == SAME else 3} labels of 9" in said


def test_label_says_that_every_pair_was_asked(tmp_path: Path) -> None:
    words = ("gather_initial_prefs", FEW, *CLIPS, "--no_gather_prefs", "--max_segs", "3", "--run_name", "clips")
    here(tmp_path, *words)
    said = here(None, "label", str(tmp_path / "clips"), "--teacher", "oracle", "--max_prefs", "9").stdout
    assert "All pairs of the 3 stored clips were asked" in said and "3 more than at the start" in said


def test_the_program_around_a_wrapper_is_told(tmp_path: Path) -> None:
    env = HumanPreferencesEnvWrapper(
        gymnasium.make(SAME),
        synthetic_prefs=True,
        segment_length=3,
        n_initial_prefs=9,
        max_prefs_in_db=9,
        log_dir=tmp_path,
        mp_context="fork",
    )
    with contextlib.closing(env), pytest.raises(ChildError, match="are all the same, so there will be no more than 0"):
        while True:
            env.reset()
            for _ in range(3):
                env.step(0)


def test_every_pair_was_asked_is_said_only_if_it_is_so(ring: Ring) -> None:
    """A person answers faster than the agent acts, and the first pairs have no clip in common."""
    screen = FakeWindow()
    interface = ring.interface(lambda db: PersonGatherer(db, screen), n_initial=12, goal=12, max_segs=48)
    said = set[str]()

    def answered(n_labels: int) -> bool:
        screen.presses.append(["left"])
        said.add(interface.status.line())
        return interface.n_labels == n_labels

    for n_labels in range(1, 12):
        ring.act(2)
        step_until(interface, functools.partial(answered, n_labels))
        interface.step()
        said.add(interface.status.line())
    waits = [line for line in said if line.startswith("Waiting for new clips")]
    assert waits == ["Waiting for new clips from the agent: the first pairs have no clip in common"]


def test_every_pair_was_asked_is_said_once_it_is_so(ring: Ring) -> None:
    interface = ring.interface(n_initial=9, goal=9, max_segs=3)
    ring.act(3)
    step_until(interface, lambda: interface.n_labels == 3)
    interface.step()
    assert interface.status.line() == "Waiting for new clips from the agent: every pair was asked"
    _, *others = interface.db.answers()
    interface.queries.asked = Asked(row.comparison_id for row in others)  # fifty random pairs may miss the last one
    assert interface.status.line() == "Waiting for new clips from the agent: no new pair was found in those so far"
