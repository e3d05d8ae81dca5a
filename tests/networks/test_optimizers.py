"""The optimisers compute what PyTorch's do, to the bit, and no process that trains imports PyTorch's compiler."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drlhp.networks.optimizers import UncompiledAdam, UncompiledAdamW
from tests.support import ROOT
from tests.support.commands import BRIEF_PPO, DEADLINE, DOT, SYNC, TINY, UNEVALUATED
from tests.support.preloaded import run_captured

TRAIN = """
import sys, run
assert run.main(sys.argv[1:]) == 0
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (UncompiledAdam, torch.optim.Adam, {"eps": 1e-5, "fused": True}),
        (UncompiledAdam, torch.optim.Adam, {}),
        (UncompiledAdamW, torch.optim.AdamW, {"weight_decay": 0.1}),
    ],
)
def test_the_same_weights_and_state_bit_for_bit(ours: Any, theirs: Any, settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))]
    networks.append(copy.deepcopy(networks[0]))
    optimizers = [
        kind(net.parameters(), lr=0.1, **settings) for kind, net in zip((ours, theirs), networks, strict=True)
    ]
    for step in range(6):
        inputs = torch.randn(9, 5)
        for network, optimizer in zip(networks, optimizers, strict=True):
            optimizer.zero_grad()
            network(inputs).square().sum().backward()
            optimizer.step()
        if step == 2:  # the state of each in a new one of the other kind
            mine, other = (optimizer.state_dict() for optimizer in optimizers)
            optimizers = [
                ours(networks[0].parameters(), lr=0.5, **settings),
                theirs(networks[1].parameters(), lr=0.5, **settings),
            ]
            optimizers[0].load_state_dict(other)
            optimizers[1].load_state_dict(mine)
    for a, b in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        assert torch.equal(a, b) and a.requires_grad
    states = [optimizer.state_dict() for optimizer in optimizers]
    assert str(states[0]) == str(states[1])


@pytest.mark.parametrize("algo", [(), BRIEF_PPO], ids=["a2c", "ppo"])
def test_a_run_does_without_the_compiler(tmp_path: Path, algo: tuple[str, ...]) -> None:
    short = ("--n_envs", "1", "--n_steps", "20", "--million_timesteps", "0.0001", *UNEVALUATED)
    words = ("train_policy_with_preferences", DOT, "--synthetic_prefs", *TINY, SYNC, *short)
    command = [sys.executable, "-c", TRAIN, *words, *algo, "--log_dir", str(tmp_path)]
    done = run_captured(command, DEADLINE, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
