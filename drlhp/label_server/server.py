"""The process of the labelling server: it takes a port, records its address, and serves until it is stopped."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from drlhp.errors import PrefDBError, UserError
from drlhp.label_server.app import LabelApp
from drlhp.label_server.security import TimedProtocol, is_loopback, run_token
from drlhp.labelling.answers import LABELLER

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8765
NEXT_PORTS = 100  # ports after the default one that are tried, if it is taken
FOLDER = "web"  # This folder in the run folder holds the token, the address, the clips and the last episode.
MAX_CONNECTIONS = 200
KILLED_SECONDS = 1.0  # until a process that was killed has ended
CLOSE_SECONDS = 3
# How long a thread that draws clips may keep the interpreter from the thread that answers requests. A request waits for
# it after each of its dozen SQL statements. With Python's default of 5 ms, that was half of a request's time.
SWITCH_SECONDS = 0.0005
PROCESS = "label server"
OTHER_HOSTS = ("0.0.0.0", "::")  # Each of these stands for every address of the machine.


@dataclass(frozen=True)
class Address:
    """The host and port of a server."""

    host: str
    port: int

    def link(self, token: str, origin: str = "") -> str:
        """Returns the link that a person opens, here or at a proxy; the token follows the #, so no log contains it."""
        name = socket.gethostname() if self.host in OTHER_HOSTS else self.host
        here = f"http://{f'[{name}]' if ':' in name else name}:{self.port}"
        return f"{origin or here}/#t={token}"

    def tunnel(self) -> str:
        """Returns the SSH command that makes the link work on another computer, if only this machine can open it."""
        here = f"[{self.host}]" if ":" in self.host else self.host
        return f"ssh -N -L {self.port}:{here}:{self.port} {socket.gethostname()}"


def listen(host: str = DEFAULT_HOST, port: int | None = None, before: int | None = None) -> socket.socket:
    """Returns a socket for `serve`.

    Args:
        port: 0 means any free port; None is the port before, else the default one, else the next one that is free.
        before: the port at which browsers know this page already.

    Raises:
        UserError: the port is taken, or the host is none of this machine's.
    """
    usual = [*([before] if before else []), *range(DEFAULT_PORT, DEFAULT_PORT + NEXT_PORTS + 1)]
    ports = usual if port is None else [port]
    for one in ports:
        try:
            return _bound(host, one)
        except (OSError, TypeError) as error:  # TypeError: the text cannot be the name of a host.
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE and one != ports[-1]:
                continue
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f"cannot serve at {host}:{one} ({reason}); choose another --web_port or --web_host."
            ) from error
    raise AssertionError("there is a port to try")


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen()
    except BaseException:
        found.close()
        raise
    return found


def port_before(run_dir: Path) -> int | None:
    """Returns the port at which the run's page was served last; None if that is not known."""
    try:
        port = json.loads((run_dir / FOLDER / "address.json").read_text())["port"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return port if isinstance(port, int) and 0 < port < 2**16 else None


def prepare(run_dir: Path, sock: socket.socket) -> tuple[Address, str]:
    """Writes the server's address into the run folder; returns the address and the run's token."""
    folder = run_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    address = Address(*sock.getsockname()[:2])
    draft = folder / "address.json.new"
    draft.write_text(json.dumps({"host": address.host, "port": address.port}) + "\n")
    os.replace(draft, folder / "address.json")
    return address, run_token(folder)


def launch(
    db_path: Path,
    run_dir: Path,
    sock: socket.socket,
    labeller: str = LABELLER,
    origin: str = "",
    framed: bool = False,
) -> subprocess.Popen[bytes]:
    """Starts `serve` in a process of its own, which ends when this one does; returns that process.

    It is a new interpreter, not a fork, so that it does not hold the modules and data that the run has loaded.
    """
    arguments = [str(db_path.resolve()), str(run_dir.resolve()), str(sock.fileno()), labeller, origin, str(int(framed))]
    (run_dir / FOLDER).mkdir(parents=True, exist_ok=True)
    with (run_dir / FOLDER / "server.log").open("ab") as log:  # warnings and tracebacks
        return subprocess.Popen(
            [sys.executable, "-m", __package__, *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[sock.fileno()],
            cwd=Path(__file__).parents[str(__package__).count(".") + 1],  # the folder that holds the top package
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the process of `launch`; may be called twice."""
    process.terminate()
    try:
        process.wait(2 * CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        # No longer than this: after a Ctrl-C amid `poll`, which leaves its lock taken, Popen hears of no end any more.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_SECONDS)
    assert process.stdin is not None
    process.stdin.close()


def serve(db_path: Path, run_dir: Path, sock: socket.socket, labeller: str, origin: str, framed: bool) -> None:
    """Serves the page of a run until SIGTERM or the end of standard input; prints nothing. Is the body of a process.

    Args:
        db_path: the run's prefs.db.
        run_dir: the run folder, which keeps the token, the clips and the address.
        sock: the socket from `listen`.
        labeller: the name of the labeller on this machine, until they take another.
        origin: the proxy's address of the page, such as https://label.example.org; empty if there is no proxy.
        framed: whether other pages of this machine may show the page in a frame.

    Raises:
        PrefDBError: the server cannot start.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    address, token = prepare(run_dir, sock)
    tunnel = address.tunnel() if is_loopback(address.host) and not origin else ""
    app = LabelApp(db_path, run_dir, token, address.host, labeller, origin, tunnel, framed)
    config = uvicorn.Config(
        app.asgi,
        http=TimedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        h11_max_incomplete_event_size=16 * 1024,
    )
    server = _Server(config)
    with contextlib.suppress(OSError):  # Only Linux has this file.
        Path("/proc/self/comm").write_text(PROCESS)  # `top` and `ps` show this name.

    def leave(*_: object) -> None:
        app.stop()
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGHUP):  # The parent process handles Ctrl-C and a closed terminal.
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, leave)
    threading.Thread(target=_follow, args=(leave,), daemon=True, name="parent watch").start()
    server.run(sockets=[sock])
    if not server.started:
        raise PrefDBError(f"{db_path} cannot be served; the lines above say why")


def _follow(leave: Callable[[], None]) -> None:
    """Calls `leave` when standard input ends, because the parent process, which holds the other end, has died."""
    os.read(0, 1)
    leave()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to `serve`, because uvicorn would raise them again when it is done."""
        yield
