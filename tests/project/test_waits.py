"""Every state in which a part waits: what ends it, or what is said of it within ten seconds, and the test of that."""

from __future__ import annotations

import ast
from typing import NamedTuple

import pytest

from tests.support import ROOT


class Wait(NamedTuple):
    """A state in which a part waits."""

    part: str
    state: str
    ends: str  # what ends it, or what is said if nothing may
    test: str  # file:function, below tests/


STILL = "Patience says what has taken ten seconds, and again after twice the time"
WAITS = [
    Wait(
        "program", "its imports and its first processes", STILL, "runtime/test_pulse.py:test_what_does_not_move_is_said"
    ),
    Wait(
        "main process",
        "a teacher that does not answer",
        STILL + "; Ctrl-C ends the run",
        "runtime/test_pulse.py:test_a_block_within_another_counts_from_its_own_beginning",
    ),
    Wait(
        "main process",
        "children that are to leave",
        "after 10 s in an environment they are ended, else after 60 s",
        "runtime/test_processes.py:test_a_child_that_hangs_in_an_environment_is_ended",
    ),
    Wait(
        "main process",
        "a child whose end nobody reports, as its forkserver was killed",
        "the run fails, and the child is ended",
        "runtime/test_processes.py:test_a_run_whose_helper_is_killed",
    ),
    Wait(
        "child",
        "a parent that was killed",
        "it saves and leaves; at once before its first step, after 10 s in an environment",
        "runtime/test_processes.py:test_an_environment_that_hangs_is_told_of_and_nothing_is_left",
    ),
    Wait(
        "environment's process",
        "orders of a parent that was killed",
        "the system ends it, or a thread",
        "runtime/test_processes.py:test_processes_on_a_leash_end_with_their_parent",
    ),
    Wait(
        "policy",
        "actors on a cluster that start or act",
        STILL + "; one that dies is replaced, and Ctrl-C ends the wait within 10 s",
        "a2c/test_actors.py:test_actors_give_the_same_weights_as_a_crew_and_one_that_is_killed_is_replaced",
    ),
    Wait(
        "policy",
        "a step, a reset or the start of environments",
        STILL,
        "runtime/test_processes.py:test_an_environment_that_hangs_is_told_of_and_nothing_is_left",
    ),
    Wait(
        "policy",
        "the first weights, with a full queue of segments",
        "the labels, or the interface's sentence that there will be none",
        "queries/test_waits.py:test_every_mode_ends_with_a_sentence",
    ),
    Wait(
        "policy",
        "episodes long enough for a segment",
        "a sentence after 1,000 episodes",
        "a2c/test_control.py:test_a_run_without_labels_ends_where_no_episode_is_long_enough",
    ),
    Wait(
        "policy",
        "people who lag behind (--wait_for_labels)",
        "their answers; the status line says how many are open",
        "test_pref_interface.py:test_the_policy_waits_while_too_many_questions_are_open",
    ),
    Wait(
        "policy and trainer",
        "the other's turn at the processor",
        "60 s, or the end of the run",
        "runtime/test_channels.py:test_a_process_that_died_in_its_turn_keeps_nobody_waiting_for_ever",
    ),
    Wait(
        "interface",
        "a full pool before the first labels",
        "the progress line counts its clips",
        "test_pref_interface.py:test_labels_that_are_only_gathered_wait_for_a_full_pool_too",
    ),
    Wait(
        "interface",
        "new pairs before training, while clips repeat",
        "the line says so at once; the run ends after a pool's worth of clips in vain",
        "queries/test_waits.py:test_before_training_clips_that_repeat_end_the_run",
    ),
    Wait(
        "interface",
        "new pairs while the policy trains",
        "training goes on without, which is said once",
        "queries/test_waits.py:test_while_the_policy_trains_it_goes_on_without_labels",
    ),
    Wait(
        "interface",
        "a person's answers",
        "the person; one who has left is told of, with the command that labels on",
        "test_pref_interface.py:test_who_leaves_before_the_training_begins_lets_it_begin_if_it_can",
    ),
    Wait(
        "interface",
        "room on the disk for new pairs",
        "the status line says so",
        "test_pref_interface.py:test_the_last_of_a_disk_is_left_to_the_answers",
    ),
    Wait(
        "interface",
        "weights between rounds of initial labels",
        "the trainer publishes them; the status line says so",
        "training/test_rounds.py:test_each_round_waits_for_what_the_last_one_has_taught",
    ),
    Wait(
        "keeper of segments (--no_gather_prefs)",
        "clips that it does not have",
        "the line says so at once; the run ends after a pool's worth of clips in vain",
        "queries/test_waits.py:test_every_mode_ends_with_a_sentence",
    ),
    Wait(
        "wrapper",
        "new pairs while clips repeat",
        "ChildError in the program",
        "queries/test_waits.py:test_the_program_around_a_wrapper_is_told",
    ),
    Wait(
        "label RUN",
        "pairs, when all were asked",
        "it ends and says so",
        "queries/test_waits.py:test_label_says_that_every_pair_was_asked",
    ),
    Wait(
        "label RUN",
        "a run that goes on to ask",
        "the end of the run; the status line says that it waits",
        "commands/test_label.py:test_when_the_run_beside_has_ended_what_it_left_is_asked",
    ),
]


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: f"{wait.part}: {wait.state}")
def test_each_wait_has_an_end_and_a_test(wait: Wait) -> None:
    path, _, name = wait.test.partition(":")
    functions = [node.name for node in ast.parse((ROOT / "tests" / path).read_text()).body if hasattr(node, "name")]
    assert wait.ends and any(function.startswith(name or "test_") for function in functions), wait.test
