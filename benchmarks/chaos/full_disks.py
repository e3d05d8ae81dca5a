"""Disks that are full: a file may not grow beyond a size, or the whole disk has one, in each phase of a run's life.

The command has to say so in a sentence; with space again the run goes on, and has every label that it had.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.chaos.cases import Notes
from benchmarks.chaos.commands import called, complaint
from benchmarks.chaos.runs import NAME, SMALL, check_end, check_labels, made, no_curves
from tests.support.commands import answers, small_files

KIB = (0, 4, 32, 64, 96, 160)  # of space, beside what is there when the command starts
LARGE = "256m"
RESUME = ("--resume", NAME, "--million_timesteps", "0.0006")
PHASES: dict[str, tuple[str, ...]] = {
    "a new run": (*SMALL, "--synchronous", "--log_dir", "."),
    "a resumed run": RESUME,
    "label": ("label", NAME, "--teacher", "oracle", "--max_prefs", "20"),
    "report": ("report", NAME, "--output", "report"),
    "export": ("export", NAME, "--output", "export"),
    "import": ("import", "exported", "--output", "imported"),
}
AGAIN = ("report", "export", "import")
KINDS = ("files", "disk")
MS_REMOUNT, CLONE_NEWNS, CLONE_NEWUSER = 32, 0x20000, 0x10000000


class FullDisks:
    """Fills disks under the commands; a finished small run and its export are made once, in `with ...of_a_run()`."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.cases = [(phase, kind, kib) for kib in KIB for kind in KINDS for phase in PHASES]

    @classmethod
    @contextmanager
    def of_a_run(cls) -> Iterator[FullDisks]:
        with tempfile.TemporaryDirectory(prefix="chaos-") as name:
            source = Path(name)
            folder = made(source)
            assert called("export", str(folder), "--output", str(source / "exported")).status == 0
            yield cls(source)

    @property
    def n_cases(self) -> int:
        return len(self.cases)

    def __call__(self, number: int, notes: Notes) -> None:
        """Carries out the command of a phase on a disk of one size, and then with space again."""
        phase, kind, kib = self.cases[number]
        did = f"{phase} with {kib} KiB of {kind}"
        if kind == "disk" and not new_disk(notes.folder):
            notes.count("disks that this machine does not allow to make")
            return
        os.chdir(notes.folder)  # which is the new disk now
        if phase != "a new run":
            shutil.copytree(self.source / NAME, NAME)
            shutil.copytree(self.source / "exported", "exported")
        folder = Path(NAME)
        before = answers(folder) if folder.exists() else []
        with small_files(1024 * kib) if kind == "files" else small_disk(notes.folder, 1024 * kib):
            ended = called(*PHASES[phase])
        notes.count("commands on full disks")
        notes.count(f"exit status {ended.status}")
        if wrong := complaint(ended):
            notes.found(did, wrong)
        check_labels(before, folder, notes, did)
        if ended.status != 0 or phase not in AGAIN:
            self.go_on(phase, folder, notes, did)

    def go_on(self, phase: str, folder: Path, notes: Notes, did: str) -> None:
        """Carries on with the run now that there is space; what does not change the run is done again."""
        before = answers(folder) if (folder / "prefs.db").exists() else []
        words = PHASES[phase] if phase in AGAIN or not folder.exists() else RESUME
        with no_curves():
            ended = called(*words)
        did = f"{did}, and then {words[0]} with space"
        if wrong := complaint(ended):
            notes.found(did, wrong)
        check_labels(before, folder, notes, did)
        if ended.status == 0:
            check_end(ended.output, folder, notes, did)
        else:
            notes.found(did, f"does not go on: {ended.output[-400:]}")


def new_disk(place: Path) -> bool:
    """Mounts a disk in memory at a place, which only this process and its children see; False if that is forbidden."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    return not libc.mount(b"none", os.fsencode(place), b"tmpfs", 0, f"size={LARGE}".encode())


@contextmanager
def small_disk(place: Path, n_bytes: int) -> Iterator[None]:
    """Leaves so many bytes free on the disk at a place."""
    stat = os.statvfs(place)
    used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    resize(place, str(max(used + n_bytes, stat.f_frsize)))  # because 0 would be no limit
    try:
        yield
    finally:
        resize(place, LARGE)


def resize(place: Path, size: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", os.fsencode(place), b"tmpfs", MS_REMOUNT, f"size={size}".encode()):
        raise OSError(ctypes.get_errno(), f"cannot give the disk {size}")
