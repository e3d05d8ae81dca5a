"""The one check of settings: each kind of annotation, and what its message names."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from drlhp.bounds import BELOW_ONE, LARGEST, POSITIVE, POSITIVE_OR_INFINITE, SEED, SHARE, at_least, check
from drlhp.errors import UserError


@dataclass(frozen=True)
class Example:
    n_envs: Annotated[int, at_least(1)] = 1
    ent_coef: Annotated[float, at_least(0)] = 0.5
    lr: Annotated[float, POSITIVE] = 0.1
    beta: Annotated[float | None, POSITIVE_OR_INFINITE] = None
    gamma: Annotated[float, SHARE] = 1.0
    dropout: Annotated[float, BELOW_ONE] = 0.0
    wait: Annotated[Literal["never", "initial"] | float, SHARE] = "never"
    seed: Annotated[int, SEED] = 0
    algo: Literal["a2c", "ppo", "trpo"] = "a2c"
    debug: bool = False
    name: str | None = None
    place: str = "a"
    interval: float = 0.5
    of_anything: int = 0


@pytest.mark.parametrize(
    "works",
    [
        *({"n_envs": LARGEST}, {"n_envs": np.int64(3)}, {"ent_coef": 1}, {"ent_coef": np.float32(0)}),
        *({"lr": 5e-324}, {"beta": math.inf}, {"gamma": 0}, {"wait": "initial"}, {"wait": 0.5}, {"seed": 2**62 - 1}),
        *({"algo": "trpo"}, {"debug": np.True_}, {"of_anything": -1}, {"name": "é"}),
    ],
)
def test_what_its_annotation_allows_may_stand_in_a_field(works: dict[str, Any]) -> None:
    check(replace(Example(), **works))


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("n_envs", 0, "a whole number, 1 or more"),
        ("n_envs", 1.5, "a whole number, 1 or more"),
        ("n_envs", "1", "a whole number, 1 or more"),
        ("n_envs", None, "a whole number, 1 or more"),
        ("n_envs", 2**31, "a whole number, 2147483647 or less"),
        ("ent_coef", math.nan, "a number, 0 or more"),
        ("ent_coef", math.inf, "a number, 2147483647 or less"),
        ("lr", 0, "a number above 0"),
        ("lr", math.inf, "a number above 0"),
        ("beta", 0.0, "a number above 0, or inf"),
        ("gamma", 1.5, "a number from 0 to 1"),
        ("dropout", 1.0, "a number, at least 0 and below 1"),
        ("wait", "always", "'never', 'initial' or a number from 0 to 1"),
        ("seed", 2**62, "a whole number, 0 or more, and below 2^62"),
        ("algo", "dqn", "'a2c', 'ppo' or 'trpo'"),
        ("debug", "False", "True or False"),
        ("debug", 1, "True or False"),
        ("n_envs", True, "a whole number, 1 or more"),
        ("interval", "1", "a number"),
        ("interval", math.nan, "a number"),
        ("name", 3, "a text"),
        ("name", "a\0b", "a text"),
        ("place", None, "a text"),
        ("place", "\ud800", "a text"),
    ],
)
def test_what_its_annotation_excludes_is_named_as_a_flag_or_a_keyword(name: str, value: Any, wanted: str) -> None:
    for prefix in ("", "--"):
        with pytest.raises(UserError) as raised:
            check(replace(Example(), **{name: value}), prefix)
        assert str(raised.value) == f"{prefix}{name} must be {wanted}, not {value!r}."
