"""A Python that has imported the large libraries and becomes each program that a test starts, which saves seconds.

What it becomes is a child of the test's process with its own standard streams, folder and environment, as a program
that is started afresh. The project's own files are not among what is imported beforehand. The processes that such a
program starts by multiprocessing are forks of it, which have these libraries and nothing else of it.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import importlib
import inspect
import io
import itertools
import json
import multiprocessing.util
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
from typing import Any

LIBRARIES = (
    *("torch", "torch.utils.tensorboard", "gymnasium", "ale_py", "numpy", "PIL.Image", "tyro", "rich.console"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg"),
    *("fsspec.implementations.local", "starlette.routing", "uvicorn.protocols.http.h11_impl", "uvicorn.lifespan.on"),
)
# How the processes begin that import the same libraries: the server of processes, and one that is spawned.
LARGE_PROCESSES = ("from multiprocessing.forkserver import main", "from multiprocessing.spawn import spawn_main")
PR_SET_CHILD_SUBREAPER = 36
MOST_FILES, ABOVE_ALL = 16, 512  # files that a new program gets; a number that none of them has


class PreloadedPopen(subprocess.Popen[str]):
    """`subprocess.Popen` of this Python with a script, `-c` or `-m` (`[sys.executable, *words]`), without its imports.

    Not for what has to see an environment variable while it imports.
    """

    def _execute_child(self, *args: Any) -> None:
        if sys.platform != "linux":
            super()._execute_child(*args)  # type: ignore[misc]
            return
        given = inspect.signature(subprocess.Popen._execute_child).bind(self, *args).arguments  # type: ignore[attr-defined]
        ends = [given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        _, *words = map(os.fspath, given["args"])
        request = {
            "words": words,
            "cwd": os.fspath(given["cwd"] or os.getcwd()),
            "env": dict(os.environ if given["env"] is None else given["env"]),
            "new_session": given["start_new_session"],
            "largest_file": resource.getrlimit(resource.RLIMIT_FSIZE),
            "cores": sorted(os.sched_getaffinity(0)),  # of this thread
            "files": [0, 1, 2, *given["pass_fds"]],
        }
        streams = [end if end != -1 else number for number, end in enumerate((ends[0], ends[3], ends[5]))]
        try:
            self.pid = _pid_of_new(json.dumps(request).encode(), [*streams, *given["pass_fds"]])
            self._child_created = True
        finally:
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]


def run_captured(
    command: list[str], timeout: float, *, start: type[subprocess.Popen[str]] = PreloadedPopen, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Does what `subprocess.run` does with captured output."""
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(command, text=True, **options) as process:
        try:
            printed, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, printed, errors)


_server: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []
_one_at_a_time = threading.Lock()


def _pid_of_new(request: bytes, files: list[int]) -> int:
    with _one_at_a_time:
        return _pid_of_next(request, files)


def _pid_of_next(request: bytes, files: list[int]) -> int:
    if not _server:
        ours, theirs = socket.socketpair()
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, __file__, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environ, stdin=subprocess.DEVNULL)
        theirs.close()
        _server.append((ours, process))  # which ends with the connection
    connection, _ = _server[0]
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # the new one's parent ends at once, and this process becomes its parent
    try:
        socket.send_fds(connection, [len(request).to_bytes(8, "little")], files)
        connection.sendall(request)
        return int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "little")
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Answers each request with a new process; returns the request in that process."""
    while True:
        header, files, _, _ = socket.recv_fds(connection, 8, MOST_FILES)
        if not header:
            os._exit(0)
        request = json.loads(connection.recv(int.from_bytes(header, "little"), socket.MSG_WAITALL))
        told, tell = os.pipe()
        held, go = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child != 0:
                os.write(tell, child.to_bytes(8, "little"))
                os._exit(0)
            os.close(go)
            os.read(held, 1)  # until the parent is the test's process
            for end in (told, tell, held):
                os.close(end)
            connection.close()
            # Out of the way first, because one may have the number that another is to have.
            moved = [fcntl.fcntl(file, fcntl.F_DUPFD, ABOVE_ALL) for file in files]
            for file in files:
                os.close(file)
            for number, file in zip(request["files"], moved, strict=True):
                os.dup2(file, number)
                os.close(file)
            return request
        os.waitpid(between, 0)
        connection.sendall(os.read(told, 8))
        for end in (told, tell, held, go, *files):
            os.close(end)


def _become(request: dict[str, Any], libraries: list[str]) -> None:
    """Carries out a script as if this process had been started for it."""
    if request["new_session"]:
        os.setsid()
    resource.setrlimit(resource.RLIMIT_FSIZE, request["largest_file"])
    os.sched_setaffinity(0, request["cores"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdin, sys.stdout, sys.stderr = (_stream(*words) for words in ((0, "rb"), (1, "wb"), (2, "wb")))
    option, *rest = request["words"]
    sys.argv = [option, *rest[1:]] if option in ("-c", "-m") else [option, *rest]
    folder = os.getcwd() if option in ("-c", "-m") else os.path.dirname(os.path.abspath(option))
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [folder, *paths, *libraries]
    _fork_what_multiprocessing_starts()
    try:
        if option == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif option == "-c":
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(rest[0], vars(main))
        else:
            runpy.run_path(option, run_name="__main__")
    except SystemExit as left:
        if not isinstance(left.code, int | None):
            raise  # Python prints it
        _leave(left.code or 0)
    else:
        _leave(0)


def _leave(status: int) -> None:
    """Ends this process as Python does, without the half second that it takes to unload the large libraries."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for other threads
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):  # nobody reads it any more, or it was closed
        sys.exit(status)
    os._exit(status & 0xFF)


def _fork_what_multiprocessing_starts() -> None:
    """Lets processes that multiprocessing starts be forks of this one without what the program itself has imported."""
    import gymnasium  # which is loaded already

    start, imported = multiprocessing.util.spawnv_passfds, set(sys.modules)
    environments = dict(gymnasium.registry)

    def start_or_fork(path: bytes, words: list[Any], kept: list[int]) -> int:
        code, *arguments = words[words.index("-c") + 1 :]
        if not code.startswith(LARGE_PROCESSES):
            return start(path, words, kept)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                _forget(set(sys.modules) - imported)
                gymnasium.registry.clear()  # else a module that is imported again registers its environments twice
                gymnasium.registry.update(environments)
                _keep_open(kept)
                sys.argv = ["-c", *arguments]
                _leave(_status_of(code))
            finally:
                os._exit(1)
        return pid

    multiprocessing.util.spawnv_passfds = start_or_fork  # type: ignore[assignment]


def _status_of(code: str) -> int:
    """Carries out a program that consists of one line; returns its exit status."""
    try:
        exec(code, {})
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _forget(names: set[str]) -> None:
    """Leaves this process as if it had imported none of these modules, and were no program yet."""
    for name in names:
        del sys.modules[name]
    sys.modules["__main__"] = types.ModuleType("__main__")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()


def _keep_open(files: list[int]) -> None:
    """Closes all files but these and the standard streams, as the start of another program does."""
    for before, end in itertools.pairwise([2, *sorted(files), os.sysconf("SC_OPEN_MAX")]):
        os.closerange(before + 1, end)


def _stream(number: int, mode: str) -> io.TextIOWrapper:
    errors = "backslashreplace" if number == 2 else "strict"
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    stream: Any = open(number, mode, 0 if at_once and number else -1, closefd=False)  # noqa: SIM115 - until the end
    lines = number == 2 or stream.isatty()
    return io.TextIOWrapper(stream, "utf-8", errors, line_buffering=lines, write_through=at_once)


if __name__ == "__main__":
    del sys.path[0]  # this folder
    for library in LIBRARIES:
        importlib.import_module(library)
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))), list(sys.path))
