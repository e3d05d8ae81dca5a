"""A CUDA card and the CPU compute the same; what only a card can show is skipped where there is none."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import SGD

import run
from a2c.config import PolicyConfig
from a2c.model import Policy
from a2c.update import Batch, Descent, a2c_update, gradients, ppo_update
from commands.flags import parse
from commands.run_folder import RunFolder
from drlhp.errors import UserError
from drlhp.networks.device import CPU, Recorded, joined, to_device
from drlhp.runtime import checkpoint
from drlhp.runtime.weights import WeightsBoard
from envs import EnvInfo
from reward_predictor import PredictorConfig, PredictorCopySpec, PredictorInputs, RewardPredictor
from tests.support import ROOT
from tests.support.ring import predicted_reward

DOT = "MovingDotNoFrameskip-v0"
CUDA = torch.device("cuda")
N_ACTIONS = 6
PIXELS = PredictorInputs("pixels", (4, 84, 84), N_ACTIONS, None)
PPO = PolicyConfig(algo="ppo", ppo_epochs=2, ppo_minibatches=2)

has_card = torch.cuda.is_available()
needs_card = pytest.mark.skipif(not has_card, reason="needs a CUDA card")
needs_no_card = pytest.mark.skipif(has_card, reason="needs a machine without a CUDA card")


def pixels(batch: int, seed: int = 0) -> np.ndarray:
    """(batch, 4, 84, 84) uint8, channels last in memory: bright squares of several sizes, here and there."""
    rng = np.random.default_rng(seed)
    pictures = np.zeros((batch, 84, 84, 4), np.uint8)
    for picture in pictures:
        row, column, size = rng.integers((0, 0, 4), (60, 60, 24))
        picture[row : row + size, column : column + size] = rng.integers(50, 256, 4)
    return np.moveaxis(pictures, -1, 1)


def policy(device: torch.device, kind: Literal["pixels", "vector"] = "pixels") -> Policy:
    """The same weights on every device, with actions of very different probability; vectors take two numbers."""
    torch.manual_seed(1)
    if kind == "pixels":
        names = tuple(str(action) for action in range(N_ACTIONS))
        info = EnvInfo("Test-v0", "pixels", (4, 84, 84), N_ACTIONS, None, 25, 15.0, 4, (), None, names, {})
    else:
        info = EnvInfo("Test-v0", "vector", (5,), None, 2, 25, 30.0, 1, (), None, (), {})
    made = Policy(info, "nature", device)
    with torch.no_grad():
        made.actor.weight.mul_(100)
    return made


def flattened(found: tuple[list[Tensor], Tensor]) -> list[Tensor]:
    return [*found[0], found[1]]


def flat(module: torch.nn.Module) -> Tensor:
    return torch.cat([param.detach().cpu().reshape(-1) for param in module.parameters()])


def test_auto_takes_a_card_for_pixels_if_there_is_one_but_not_for_runs_that_must_repeat() -> None:
    words = ["train_policy_with_original_rewards", DOT]
    assert parse(words).torch_device().type == ("cuda" if has_card else "cpu")
    assert parse([*words, "--synchronous"]).torch_device().type == "cpu"
    assert parse([words[0], "Hopper-v1"]).torch_device().type == "cpu"  # whose crew of processes is quicker
    assert parse([*words, "--device", "cpu"]).torch_device().type == "cpu"


@needs_no_card
def test_a_card_that_is_not_there_is_refused_with_the_fix() -> None:
    with pytest.raises(UserError, match="give --device cpu"):
        parse(["train_policy_with_original_rewards", DOT, "--device", "cuda"])


@pytest.mark.parametrize(
    ("network", "device", "turns"),
    [("nature", "cpu", True), ("nature", "cuda", False), ("feature_points", "cpu", False)],
)
def test_only_large_networks_that_share_a_small_processor_take_turns(
    network: str, device: Literal["cpu", "cuda"], turns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "n_cores", lambda: 2)
    words = ["train_policy_with_original_rewards", DOT, "--policy_network", network]
    config = replace(parse(words), device=device)
    folder = RunFolder.create(tmp_path / "run", config.as_dict())
    try:
        assert run.Ring(config, folder.path).take_turns == turns
    finally:
        folder.close()


@pytest.mark.parametrize(("kind", "actions"), [("pixels", torch.tensor([0, 17, 5])), ("vector", torch.randn(3, 2))])
def test_what_is_fetched_at_once_is_what_was_on_the_card(kind: Literal["pixels", "vector"], actions: Tensor) -> None:
    device = CUDA if has_card else CPU
    sent = (actions, torch.randn(3), torch.randn(3))
    fetched = policy(device, kind).fetched(joined(*(tensor.to(device) for tensor in sent)))
    for before, after in zip(sent, map(torch.from_numpy, fetched), strict=True):
        assert after.dtype == before.dtype and torch.equal(after, before)


@needs_card
@pytest.mark.parametrize("kind", ["pixels", "vector"])
def test_a_recorded_decision_is_what_the_policy_decides_now(kind: Literal["pixels", "vector"]) -> None:
    acting = policy(CUDA, kind)
    for n in (6, 3) * (Recorded.launched_before + 2):  # each number of environments has a recording
        with torch.no_grad():
            for weight in acting.parameters():
                weight.add_(0.01 * torch.randn_like(weight))
        acting.refresh()
        observations = pixels(n, n) if kind == "pixels" else np.random.default_rng(n).normal(size=(n, 5))
        observations = observations.astype(np.uint8 if kind == "pixels" else np.float32)
        noise = acting.noise(n)
        recorded, launched = acting.act(observations, noise, step=0), acting.act(observations, noise)
        for first, second in zip(recorded, launched, strict=True):
            assert first.dtype == second.dtype
            np.testing.assert_allclose(first, second, atol=1e-4)


def test_the_newest_observations_are_kept_for_the_update() -> None:
    acting = policy(CUDA if has_card else CPU)
    acting.act(pixels(3), None)
    assert not acting.acted_on
    acting.acted_on = type(acting.acted_on)(maxlen=2)
    steps = [pixels(3, seed) for seed in range(3)]
    for observations in steps:
        actions = acting.act(observations, None)[0]
    kept = torch.cat(tuple(acting.acted_on))
    assert torch.equal(kept.cpu(), torch.from_numpy(np.concatenate(steps[1:])))
    assert kept.is_contiguous(memory_format=torch.channels_last)
    chosen = to_device(np.concatenate([actions, actions]), acting.device)
    acting.evaluate(kept, chosen).log_probs.sum().backward()  # tensors of inference mode would refuse


@needs_no_card
def test_what_cannot_be_recorded_is_called_each_time() -> None:
    twice = Recorded(lambda x: (2 * x,))
    for i in range(Recorded.launched_before + 2):
        assert twice(torch.tensor([float(i)]))[0] == 2 * i
    assert not twice.records


@needs_card
@pytest.mark.parametrize("kind", ["pixels", "vector"])
def test_a_policy_acts_and_evaluates_alike(kind: Literal["pixels", "vector"]) -> None:
    on_card, on_cpu = policy(CUDA, kind), policy(CPU, kind)
    assert torch.equal(flat(on_card), flat(on_cpu))
    observations = pixels(64) if kind == "pixels" else np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)
    for noise in (on_cpu.noise(64), None):
        actions, log_probs, values = on_card.act(observations, noise)
        assert actions.dtype == (np.int64 if kind == "pixels" else np.float32)
        evaluation = on_cpu.evaluate(torch.from_numpy(observations), torch.from_numpy(actions))
        np.testing.assert_allclose(log_probs, evaluation.log_probs.detach(), atol=0.1)
        np.testing.assert_allclose(values, evaluation.values.detach(), atol=0.05)
    np.testing.assert_allclose(on_card.values(observations), values, atol=1e-5)
    there = [to_device(array, CUDA) for array in (observations, actions)]
    by_card = on_card.evaluate(*there)
    np.testing.assert_allclose(by_card.log_probs.detach().cpu(), log_probs, atol=1e-4)
    np.testing.assert_allclose(by_card.entropy.detach().cpu(), evaluation.entropy.detach(), atol=0.1)


@needs_card
@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_an_update_moves_the_weights_alike(algo: str) -> None:
    observations, moved = pixels(64), []
    rng = np.random.default_rng(0)
    actions, advantages = rng.integers(0, N_ACTIONS, 64), rng.normal(size=64).astype(np.float32)
    valid = (np.arange(64) % 9 > 0).astype(np.float32)
    for device in (CUDA, CPU):
        updated = policy(device)
        before = flat(updated)
        batch = Batch(
            *(
                to_device(array, device)
                for array in (observations, actions, np.full(64, -1.8, np.float32), advantages, advantages, valid)
            )
        )
        optimizer = SGD(updated.parameters(), lr=0.01)
        torch.manual_seed(2)  # the same minibatches
        if algo == "a2c":
            figures = a2c_update(updated, optimizer, batch, PolicyConfig())
        else:
            figures = ppo_update(updated, optimizer, batch, PPO)
        assert all(isinstance(figure, float) and np.isfinite(figure) for figure in figures.values())
        moved.append(flat(updated) - before)
    assert torch.cosine_similarity(moved[0], moved[1], dim=0) > 0.98
    assert float(moved[0].norm()) == pytest.approx(float(moved[1].norm()), rel=0.1)


@needs_card
@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_a_recorded_gradient_is_that_of_the_weights_as_they_are(algo: Literal["a2c", "ppo"]) -> None:
    rng, config, updated = np.random.default_rng(0), PolicyConfig(algo=algo), policy(CUDA)
    for i in range(Recorded.launched_before + 3):
        numbers = rng.normal(size=(3, 32)).astype(np.float32)
        arrays = [pixels(32, i), rng.integers(0, N_ACTIONS, 32), *numbers, np.ones(32, np.float32)]
        batch = Batch(*(to_device(array, CUDA) for array in arrays))
        descent = Descent(slice(0, 32), n_valid=32.0, mean=0.1 * i, std=1.0 + i, ent_coef=0.01 * i)
        found = [value.clone() for value in flattened(gradients(updated, batch, config, descent))]
        updated.descending, recorded = None, updated.descending
        launched = flattened(gradients(updated, batch, config, descent))
        updated.descending = recorded
        for first, second in zip(found, launched, strict=True):
            assert float((first - second).norm()) <= 0.02 * float(second.norm())
        with torch.no_grad():
            for weight in updated.parameters():
                weight.add_(0.01 * torch.randn_like(weight))
        updated.refresh()


@needs_card
@pytest.mark.parametrize("network", ["cnn", "feature_points"])
def test_a_predictor_settles_normalises_and_rewards_alike(network: Literal["cnn", "feature_points"]) -> None:
    config = replace(PredictorConfig(), reward_predictor_network=network, reward_predictor_uses_actions=True)
    observations, actions = pixels(64), np.arange(64) % N_ACTIONS
    rewards, made = [], []
    for device in (CUDA, CPU):
        torch.manual_seed(0)
        predictor = RewardPredictor(PIXELS, config, device)
        there = [to_device(array, device) for array in (observations, actions)]
        predictor.settle_batchnorm(*there)
        with torch.inference_mode():
            predictor.fit_normaliser(predictor(*there))
        rewards.append(predicted_reward(predictor, observations, actions))
        made.append(predictor)
    assert np.corrcoef(rewards[0], rewards[1])[0, 1] > 0.99
    board = WeightsBoard(made[1], None)
    copy = PredictorCopySpec(PIXELS, config, board, CUDA).build()
    board.publish(made[0])
    assert copy.refresh() == 1
    # The copy has batch norm folded, which in bfloat16 is another rounding.
    folded = predicted_reward(made[0].folded(), observations, actions)
    np.testing.assert_allclose(copy.member_rewards(observations, actions).normalised.mean(0), folded, atol=1e-4)
    assert np.corrcoef(folded, rewards[0])[0, 1] > 0.99


@needs_card
def test_a_checkpoint_of_a_card_is_one_of_the_cpu(tmp_path: Path) -> None:
    on_card = policy(CUDA)
    state = {"kind": "policy", "env_id": "Test-v0", "weights": on_card.state_dict()}
    path = checkpoint.save(tmp_path, 1, state)
    weights = torch.load(path, weights_only=True)["weights"]
    assert {tensor.device.type for tensor in weights.values()} == {"cpu"}
    torch.manual_seed(5)
    other = policy(CPU)
    checkpoint.fill(other, checkpoint.load(path, kind="policy", env_id="Test-v0")["weights"], path)
    assert torch.equal(flat(other), flat(on_card))


@needs_card
@pytest.mark.slow
def test_a_run_on_a_card_is_resumed_on_it_and_on_the_cpu(tmp_path: Path) -> None:
    def carry_out(*words: str) -> None:
        line = [sys.executable, str(ROOT / "run.py"), *words]
        result = subprocess.run(line, capture_output=True, text=True, timeout=240)
        assert result.returncode == 0, result.stdout + result.stderr

    first = ["train_policy_with_preferences", DOT, "--synthetic_prefs", "--device", "cuda", "--million_timesteps"]
    sizes = ["--n_envs", "4", "--n_initial_prefs", "12", "--max_prefs", "20", "--max_segs", "16"]
    bodies = ["--policy_network", "nature", "--reward_predictor_network", "cnn", "--n_initial_epochs", "2"]
    carry_out(*first, "0.002", *sizes, *bodies, "--log_dir", str(tmp_path), "--run_name", "tiny")
    folder = tmp_path / "tiny"
    carry_out("--resume", str(folder), "--million_timesteps", "0.003")
    carry_out("--resume", str(folder), "--million_timesteps", "0.004", "--device", "cpu")
    newest = checkpoint.find(folder, "policy")
    assert checkpoint.load(newest, kind="policy", env_id=DOT)["step"] >= 4000
