"""What passes between real processes: weights, queue entries, and turns with the processor."""

import contextlib
import os
import queue
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from drlhp.runtime import turns as turns_module
from drlhp.runtime.channels import SEGMENT_QUEUE_SIZE, Channels, Report, drain, offer
from drlhp.runtime.start import start_context
from drlhp.runtime.turns import ProcessorTurns, StopFlag
from drlhp.runtime.weights import WeightsBoard

CONTEXT = start_context()
PATIENCE_SECONDS = 60


def network() -> nn.Module:
    """Weights, and the buffers and whole numbers of a batch norm."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def fill(module: nn.Module, value: float) -> None:
    for tensor in module.state_dict().values():
        tensor.fill_(value)


def values(module: nn.Module) -> set[float]:
    return {float(number) for tensor in module.state_dict().values() for number in tensor.flatten()}


def read_weights(arrows: Channels, board: WeightsBoard) -> None:
    """Child: reports what it fetches, once when it starts and once after it is told to stop."""
    module = network()
    for _ in range(2):
        version = board.fetch(module)
        arrows.reports.put(Report("child", {"version": version, **{f"value {v}": v for v in values(module)}}))
        arrows.stop.wait(PATIENCE_SECONDS)
    arrows.agent_steps.value = 12
    assert offer(arrows.segments, "nobody reads this")
    arrows.discard()


def test_the_newest_weights_reach_another_process() -> None:
    arrows = Channels.create(synchronous=False, take_turns=True)
    module = network()
    board = WeightsBoard(module, arrows.context)
    assert board.version == 0
    for value in (1, 2):
        fill(module, value)
        board.publish(module)
    child = CONTEXT.Process(target=read_weights, args=(arrows, board))
    child.start()
    first = arrows.reports.get(timeout=PATIENCE_SECONDS)
    fill(module, 3)
    board.publish(module)
    fill(module, 4)  # not published
    arrows.stop.set()
    second = arrows.reports.get(timeout=PATIENCE_SECONDS)
    child.join(PATIENCE_SECONDS)
    assert child.exitcode == 0
    assert first.values == {"version": 2, "value 2.0": 2}
    assert second.values == {"version": 3, "value 3.0": 3}
    assert arrows.agent_steps.value == 12


def test_a_board_inside_one_process() -> None:
    module, copy = network(), network()
    board = WeightsBoard(module, None)
    board.publish(module)
    assert board.fetch(copy) == board.version == 1
    for name, tensor in module.state_dict().items():
        assert torch.equal(copy.state_dict()[name], tensor)
        assert copy.state_dict()[name].dtype == tensor.dtype
    fill(copy, 9)
    assert 9.0 not in values(module)


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_full_queue_drops_what_is_offered(synchronous: bool) -> None:
    arrows = Channels.create(synchronous=synchronous, take_turns=False)
    assert all(offer(arrows.segments, number) for number in range(SEGMENT_QUEUE_SIZE))
    assert not offer(arrows.segments, "one more")
    taken = [arrows.segments.get(timeout=PATIENCE_SECONDS) for _ in range(SEGMENT_QUEUE_SIZE)]
    assert taken == list(range(SEGMENT_QUEUE_SIZE))
    assert drain(arrows.segments) == []


def test_drain_takes_what_is_there_up_to_its_limit() -> None:
    channel: queue.Queue[int] = queue.Queue()
    for number in range(5):
        channel.put(number)
    assert drain(channel, limit=2) == [0, 1]
    assert drain(channel) == [2, 3, 4]
    assert drain(channel) == []


class Overlap:
    """Notices two bodies that run at the same time."""

    def __init__(self) -> None:
        self.inside, self.found = 0, False

    @contextlib.contextmanager
    def body(self) -> Iterator[None]:
        self.inside += 1
        self.found |= self.inside > 1
        yield
        self.found |= self.inside > 1
        self.inside -= 1


def test_the_trainer_gets_its_turn_while_the_policy_goes_on_and_on() -> None:
    """Left to the lock alone, the policy would take it again and again; a turn that is not given is overlap."""
    turns, overlap, stop = ProcessorTurns(CONTEXT, StopFlag(CONTEXT)), Overlap(), threading.Event()
    policy_steps = 0

    def policy() -> None:
        nonlocal policy_steps
        while not stop.is_set():
            with turns.policy(), overlap.body():
                policy_steps += sum(range(20_000)) > 0

    thread = threading.Thread(target=policy)
    thread.start()
    try:
        for _ in range(20):
            seen = policy_steps
            with turns.trainer(), overlap.body():
                sum(range(1000))
            while policy_steps == seen and thread.is_alive():  # and the policy goes on in between
                os.sched_yield()
    finally:
        stop.set()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive() and not overlap.found
    assert policy_steps >= 20


def die_in_a_turn(turns: ProcessorTurns) -> None:
    with turns.trainer():
        os._exit(5)


def test_a_process_that_died_in_its_turn_keeps_nobody_waiting_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = ProcessorTurns(CONTEXT, StopFlag(CONTEXT))
    child = CONTEXT.Process(target=die_in_a_turn, args=(turns,))
    child.start()
    child.join(PATIENCE_SECONDS)
    assert child.exitcode == 5
    monkeypatch.setattr(turns_module, "TURN_SECONDS", 0.01)
    went_on = 0
    for turn in (turns.policy, turns.trainer, turns.policy):
        with turn():
            went_on += 1
    assert went_on == 3


@pytest.mark.timeout(PATIENCE_SECONDS)
def test_nobody_waits_for_a_turn_when_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does for the death of who had it: the other then writes a checkpoint, for which there is not much time."""
    monkeypatch.setattr(turns_module, "TURN_SECONDS", 10 * PATIENCE_SECONDS)
    arrows = Channels.create(synchronous=False, take_turns=True)
    child = CONTEXT.Process(target=die_in_a_turn, args=(arrows.turns,))
    child.start()
    child.join(PATIENCE_SECONDS)
    assert child.exitcode == 5
    ending = threading.Timer(0.2, arrows.stop.set)
    ending.start()
    with arrows.turns.policy(), arrows.turns.trainer():
        assert arrows.stop.is_set()
    ending.join()


def test_without_turns_everybody_goes_on_at_once() -> None:
    turns = Channels.create(synchronous=False, take_turns=False).turns
    with turns.policy(), turns.trainer(), turns.policy():
        pass


def test_an_error_in_a_turn_gives_the_turn_back(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = ProcessorTurns(CONTEXT, StopFlag(CONTEXT))
    monkeypatch.setattr(turns_module, "TURN_SECONDS", 10 * PATIENCE_SECONDS)  # a turn that is kept hangs
    for turn in (turns.policy, turns.trainer):
        with pytest.raises(ZeroDivisionError), turn():
            raise ZeroDivisionError

    def take_turns() -> None:
        with turns.policy():
            pass
        with turns.trainer():
            pass

    thread = threading.Thread(target=take_turns, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
