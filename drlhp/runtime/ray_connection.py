"""Connects to a Ray cluster, or starts one on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from drlhp.errors import UserError, reason_of
from drlhp.runtime.machine import n_cores

ADDRESS = re.compile(r"ray://(?P<host>\[[\da-fA-F:]+\]|[\w.-]+)(:(?P<port>\d{1,5}))?/?")
CLIENT_PORT = 10001  # of a head's server for other machines, by Ray's default
REACH_SECONDS = 10.0
# Ray's server for other machines waits so long for a command that was killed, before it ends the runs.
GRACE_SECONDS = 5


@contextlib.contextmanager
def connected(on: str, flag: str, least_cores: int | None, *, warns: bool = True) -> Iterator[ModuleType]:
    """Connects to a Ray cluster for the block, and yields Ray. A local one is started if there is none, and ended.

    Args:
        on: `ray`, or an address, as the flag has it.
        least_cores: what a cluster that is started here says it has, even if this machine has fewer; None: start none.
        warns: print a warning if the cluster asks for no token.

    Raises:
        UserError: there is no cluster at the address, or it refuses this program.
    """
    if on != "ray" and not ADDRESS.fullmatch(on):
        raise UserError(
            f"{flag} takes `ray` for the Ray cluster of this machine, or ray://HOST:{CLIENT_PORT} for one whose head "
            f"is HOST, not {on}."
        )
    if find_spec("ray") is None:
        raise UserError(f"{flag} ray needs a package that is not installed: run `python -m pip install 'ray[client]'`.")
    address = _reach(on if on != "ray" else os.environ.get("RAY_ADDRESS") or "auto")
    os.environ.setdefault("RAY_CLIENT_RECONNECT_GRACE_PERIOD", str(GRACE_SECONDS))
    import ray

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    where = "the Ray cluster of this machine" if address == "auto" else f"the Ray cluster at {address}"
    try:
        with _quiet():
            is_ours = _connect(ray, address, where, least_cores)
        for number, handler in handlers.items():
            signal.signal(number, handler)  # Ray has put in its own, which would end this process at once
        if warns and not is_ours and os.environ.get("RAY_AUTH_MODE") != "token":
            print(
                f"Warning: {where} is used without a token, so everybody who can reach it can run programs on it; see "
                "RAY_AUTH_MODE=token in docs/clusters.md.",
                flush=True,
            )
        yield ray
    finally:
        ray.shutdown()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def check_cluster(on: str, flag: str) -> None:
    """Raises UserError if the cluster cannot be used; starts none."""
    with connected(on, flag, None):
        pass


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what the libraries below Ray print to stderr from the terminal, for the block: it says nothing more."""
    with open(os.devnull, "w") as nowhere:
        kept = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _connect(ray: ModuleType, address: str, where: str, least_cores: int | None) -> bool:
    """Returns whether a Ray was started for this command alone. Raises UserError if there is none to connect to."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    try:
        if address != "local":
            try:
                ray.init(address=address, **quiet)
                return False
            except ConnectionError:
                # An address that is noted is that of a cluster that was started here.
                if address != "auto" or ray._private.utils.read_ray_address():
                    raise
        if least_cores is None:
            return True
        cores = max(n_cores(), least_cores)  # a small machine carries out one run at a time all the same
        ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
        return True
    except Exception as error:
        raise explained(where, error) from error


def _reach(address: str) -> str:
    """Returns the address with its port. Raises UserError if nothing answers there: Ray would try for minutes."""
    if address in ("auto", "local"):
        return address
    found = ADDRESS.fullmatch(address) or re.fullmatch(r"(?P<host>\[[\da-fA-F:]+\]|[\w.-]+):(?P<port>\d{1,5})", address)
    if found is None:
        raise UserError(f"RAY_ADDRESS is {address}, which is no address; give HOST:6379, or ray://HOST:{CLIENT_PORT}.")
    host, port = found["host"], int(found["port"] or CLIENT_PORT)
    try:
        socket.create_connection((host.strip("[]"), port), timeout=REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else reason_of(error)
        raise UserError(
            f"no Ray cluster answers at {host}:{port} ({reason}); start one with `ray start --head`, or give another "
            "address."
        ) from error
    return f"ray://{host}:{port}" if address.startswith("ray://") else address


def explained(where: str, error: Exception) -> UserError:
    """Returns what Ray says of a cluster that cannot be used, as one sentence with the fix."""
    texts, one = [], error
    while one is not None:
        texts.append(str(one))
        one = one.__cause__ or one.__context__  # type: ignore[assignment]
    text = "\n".join(texts)
    versions = re.findall(r"Ray: (\S+)\s+Python: (\S+)", text)
    if "ersion mismatch" in text and len(versions) == 2:
        there, here = (f"Ray {ray} with Python {python}" for ray, python in versions)
        return UserError(f"{where} runs {there}, and this command {here}; use the same versions on all machines.")
    if re.search(r"[Tt]oken|[Uu]nauthenticated|AuthenticationError", text):
        return UserError(
            f"{where} refuses this machine's token; give the cluster's in RAY_AUTH_TOKEN or ~/.ray/auth_token, with "
            "RAY_AUTH_MODE=token."
        )
    return UserError(f"{where} cannot be used ({reason_of(error)}); see whether `ray status` works on its head.")
