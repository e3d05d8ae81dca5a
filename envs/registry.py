"""What Gymnasium has registered under an id, and an environment made of it."""

import ctypes
import difflib
import importlib
import os
import re
import sys
from functools import cache
from typing import Any

import ale_py
import gymnasium
from gymnasium.envs.registration import EnvSpec

from drlhp.errors import UserError, reason_of

from .bodies import TASKS

gymnasium.register_envs(ale_py)
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for every emulator that starts

MOVING_DOT_ID = "MovingDotNoFrameskip-v0"
# ale-py's own defaults for ids that lack them; the limit of half an hour, as in its ids, because an episode must end.
_ATARI_KWARGS = {
    "repeat_action_probability": 0.25,
    "full_action_space": False,
    "max_num_frames_per_episode": 108_000,
}


class EnvError(UserError, ValueError):
    """An environment cannot be used; the message is one sentence that says what would work."""


def find_spec(env_id: str) -> EnvSpec:
    """Returns Gymnasium's record of an id; `module:id` imports the module first, so that it can register its ids.

    Raises EnvError for an unknown id or a module that cannot be imported.
    """
    env_id = split_key(env_id)[0]
    module, _, name = env_id.rpartition(":")
    if module:
        choose_renderer()
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise _missing_package(env_id, error, imported_by=module) from error
        except (Exception, SystemExit) as error:  # a user's module may raise anything
            what = f"{type(error).__name__} ({reason_of(error)})"
            raise EnvError(f"{env_id} cannot be used: importing {module} failed with {what}; fix it.") from error
    spec = gymnasium.registry.get(name)
    if spec is None or _has_moved(spec):
        raise EnvError(_unknown_message(env_id, name))
    return spec


def _missing_package(env_id: str, error: ModuleNotFoundError, imported_by: str = "") -> EnvError:
    """Returns the error that names the package that is really missing, which another may need."""
    package = (error.name or "").partition(".")[0]
    if not package or package == imported_by.partition(".")[0]:
        return EnvError(f"{env_id} needs the Python package {package or imported_by!r}: install it ({error}).")
    needs = f"which {imported_by} imports" if imported_by else "which it imports"
    return EnvError(f"{env_id} needs the Python package {package!r}, {needs}: install it ({error}).")


def with_key(env_id: str, key: str | None) -> str:
    """Returns the id that stands for an environment of which the networks read the part with this name."""
    return env_id if key is None or split_key(env_id)[1] == key else f"{env_id}[{key}]"


def split_key(env_id: str) -> tuple[str, str | None]:
    """Returns an id without the name of a part of its observations, and that name: `Id-v0[image]` has image."""
    found = re.fullmatch(r"(.+?)\[(.+)\]", env_id)
    return (found[1], found[2]) if found else (env_id, None)


def is_atari(spec: EnvSpec) -> bool:
    """Returns whether an id is an unchanged Atari game of ale-py's; wrappers or a mode make it another environment."""
    changed = spec.additional_wrappers or {"mode", "difficulty"} & spec.kwargs.keys()
    return spec.entry_point == "ale_py.env:AtariEnv" and "game" in spec.kwargs and not changed


def atari_kwargs(spec: EnvSpec) -> dict[str, Any]:
    """Returns the arguments that an Atari id starts the emulator with, completed by ale-py's defaults."""
    return _ATARI_KWARGS | spec.kwargs


def is_body(spec: EnvSpec) -> bool:
    """Returns whether an id is one of Gymnasium's MuJoCo environments, unchanged: wrappers make it another task."""
    return str(spec.entry_point).startswith("gymnasium.envs.mujoco") and not spec.additional_wrappers


def _has_moved(spec: EnvSpec) -> bool:
    """Returns whether Gymnasium knows the id only to say where it is now: MuJoCo's old versions."""
    return getattr(spec.entry_point, "__name__", "") == "_raise_mujoco_py_error"


def _unknown_message(env_id: str, name: str) -> str:
    pixels_name = name.replace("-ramDeterministic", "NoFrameskip").replace("-ram", "")
    if "-ram" in name and pixels_name in gymnasium.registry:
        return f"{env_id} observes the console's memory, not its picture: use {pixels_name} instead."
    there = [known for known, spec in gymnasium.registry.items() if not _has_moved(spec)]
    # A name without a version stands for the id that the project's documents use.
    ours = (MOVING_DOT_ID, *TASKS, *(known for known in there if known.endswith("NoFrameskip-v4")))
    named: dict[str, str] = {}
    for known in (*ours, *there):
        for form in (known, re.sub(r"(NoFrameskip)?-v\d+$", "", known)):
            named.setdefault(form.lower(), known)
    # Each once, though several of its forms may be close.
    close = list(dict.fromkeys(named[form] for form in difflib.get_close_matches(name.lower(), named, n=8)))
    meant = close[:3] or ["PongNoFrameskip-v4"]
    others = ["any other Atari game", *([] if MOVING_DOT_ID in meant else [MOVING_DOT_ID])]
    return (
        f"No environment is called {env_id!r}: try {', '.join([*meant, *others])}, or module:id for an environment "
        "that a Python package registers with Gymnasium."
    )


@cache
def choose_renderer() -> None:
    """Lets MuJoCo draw with EGL or OSMesa unless MUJOCO_GL names a renderer; call this before MuJoCo is imported.

    A display that the environment names is not used: it may be gone, and drawing off the screen needs none.
    """
    if os.environ.get("MUJOCO_GL") or not sys.platform.startswith("linux"):
        return
    for backend, library in (("egl", "libEGL.so.1"), ("osmesa", "libOSMesa.so.8")):
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        os.environ["MUJOCO_GL"] = backend
        return


def make(spec: EnvSpec, **options: Any) -> Any:
    """Makes an environment as `gymnasium.make` does; raises EnvError with its constructor's message."""
    choose_renderer()
    try:
        return gymnasium.make(spec, **options)
    except ModuleNotFoundError as error:
        raise _missing_package(spec.id, error) from error
    except Exception as error:  # a constructor may raise anything
        reason = reason_of(error)
        renderer = os.environ.get("MUJOCO_GL")
        if renderer and is_body(spec) and "mujoco" not in sys.modules:  # MuJoCo loads its renderer on import
            raise EnvError(
                f"MuJoCo does not start with MUJOCO_GL={renderer} ({reason}): unset it, or let it name a renderer that "
                "is installed: egl, osmesa or, with a display, glfw."
            ) from error
        raise EnvError(f"{spec.id} could not be created: {reason}.") from error
