"""The places that are pushed to and loaded from: a folder here or at a URL, or a repository of the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from commands.sharing.layout import CARD, Kind
from drlhp.data.storage import CHECK, first_line, open_url
from drlhp.errors import UserError, reason_of
from drlhp.runtime.regular_files import open_regular

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
AT_ONCE = 8  # downloads


class Place(Protocol):
    """A repository: named files, of which each is written once."""

    name: str  # in messages

    def write(self, draft: Path) -> str:
        """Publishes the files of a folder, and returns where they are. Raises UserError if any is there already."""

    def sizes(self) -> dict[str, int]:
        """Returns the files that are there, with their sizes in bytes."""

    def fetch(self, names: Iterable[str], folder: Path) -> None:
        """Copies these files into a folder."""


def place_of(words: str, kind: Kind, *, public: bool = False, revision: str | None = None) -> Place:
    """Returns the place that a command line names.

    Raises:
        UserError: it is neither a folder nor a repository, or a package that it needs is not installed.
    """
    if words.startswith((".", "/", "~")):
        return FolderPlace(Path(words).expanduser())
    if "://" in words:
        return StoragePlace(words)
    if not REPOSITORY.fullmatch(words):
        raise UserError(
            f"{words} is no repository: give USER/NAME on the Hub, a folder, such as ./{words}, or a URL, such as "
            f"s3://BUCKET/{words}."
        )
    if find_spec("huggingface_hub") is None:
        install = "python -m pip install huggingface_hub"
        raise UserError(f"the Hub needs a package that is not installed: run `{install}`, or give a folder (./NAME).")
    return HubPlace(words, kind, public, revision)


class FolderPlace:
    """A folder with the layout of a repository."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, str(folder)

    def write(self, draft: Path) -> str:
        check_new(self.folder)
        try:
            shutil.copytree(draft, self.folder, dirs_exist_ok=True)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return str(self.folder)

    def sizes(self) -> dict[str, int]:
        if not self.folder.is_dir():
            raise UserError(f"{self.folder} is no folder; give one that `push` wrote, or USER/NAME on the Hub.")
        found = {}
        inside = [path for path in self.folder.iterdir() if path.is_dir()]
        for path in (path for folder in (self.folder, *inside) for path in folder.iterdir()):
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                found[path.relative_to(self.folder).as_posix()] = status.st_size
        return found

    def fetch(self, names: Iterable[str], folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with open_regular(self.folder / name) as source, (folder / name).open("wb") as target:
                shutil.copyfileobj(source, target)


class StoragePlace:
    """A folder at a URL that fsspec can use, such as s3://BUCKET/NAME. Its card is written last."""

    def __init__(self, url: str) -> None:
        self.name = url
        try:
            self._fs, self._root = open_url(url, url)
        except OSError as error:
            raise UserError(str(error)) from error

    def write(self, draft: Path) -> str:
        paths = sorted((path for path in draft.rglob("*") if path.is_file()), key=lambda path: path.name == CARD)
        with self._told():
            if taken := min(self._files(), default=""):
                raise UserError(f"{self.name} holds {taken} already, and nothing is overwritten; give another name.")
            written = []
            try:
                for path in paths:
                    written.append(f"{self._root}/{path.relative_to(draft).as_posix()}")
                    self._fs.put_file(str(path), written[-1])
            except BaseException:
                for there in written:
                    with contextlib.suppress(Exception):  # each file system has errors of its own
                        self._fs.rm_file(there)
                raise
        return self.name

    def sizes(self) -> dict[str, int]:
        with self._told():
            found = self._files()
        if CARD not in found:
            raise UserError(
                f"{self.name} has no {CARD}, which `push` writes last; push it again, or check the address."
            )
        return found

    def fetch(self, names: Iterable[str], folder: Path) -> None:
        def download(name: str) -> None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(f"{self._root}/{name}", str(folder / name))

        with self._told(), ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(download, names))

    def _files(self) -> dict[str, int]:
        """Returns the files at the URL, with their sizes in bytes."""
        found = self._fs.find(self._root, detail=True)
        return {path[len(self._root) + 1 :]: int(about["size"]) for path, about in found.items()}

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Raises UserError, as one sentence, for what the file system raises within the block."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # each file system has errors of its own
            raise UserError(f"{self.name} cannot be used ({first_line(error)}); {CHECK}.") from error


class HubPlace:
    """A repository of the Hugging Face Hub, or of a server that speaks its API (the variable HF_ENDPOINT).

    Args:
        public: whether a new repository can be read by everybody.
        revision: branch, tag or commit to load; None: the newest.
    """

    def __init__(self, repository: str, kind: Kind, public: bool, revision: str | None) -> None:
        import huggingface_hub
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # one for each file, of which there may be thousands
        self.api = huggingface_hub.HfApi(library_name="drlhp")
        self.repository, self.kind, self.public, self.revision = repository, kind, public, revision
        self._info = self.api.dataset_info if kind == "dataset" else self.api.model_info
        self.name, self.commit = f"{self.api.endpoint}/{'datasets/' if kind == 'dataset' else ''}{repository}", ""

    def write(self, draft: Path) -> str:
        from huggingface_hub import CommitOperationAdd

        files = sorted(path for path in draft.rglob("*") if path.is_file())
        with self._told():
            self.api.create_repo(self.repository, repo_type=self.kind, private=not self.public, exist_ok=True)
            there = self._info(self.repository)
        taken = sorted({one.rfilename for one in there.siblings or ()} - {".gitattributes"})
        if taken:
            raise UserError(f"{self.name} holds {taken[0]} already, and nothing is overwritten; give another name.")
        if there.private is not True and not self.public:
            raise UserError(f"{self.name} is public; add --public if everybody may read it, or give another name.")
        n_bytes = sum(path.stat().st_size for path in files)
        print(f"Uploading {len(files)} files, {n_bytes / 1e6:.1f} MB, to {self.name}", flush=True)
        with self._told():
            # One commit holds all of them, so that nobody ever loads a part.
            self.api.create_commit(
                self.repository,
                [CommitOperationAdd(path.relative_to(draft).as_posix(), path) for path in files],
                commit_message="Push with drlhp",
                repo_type=self.kind,
                parent_commit=there.sha,
            )
        return self.name

    def sizes(self) -> dict[str, int]:
        with self._told():
            found = self._info(self.repository, revision=self.revision, files_metadata=True)
        self.commit = found.sha or ""
        return {one.rfilename: one.size or 0 for one in found.siblings or ()}

    def fetch(self, names: Iterable[str], folder: Path) -> None:
        def download(name: str) -> None:
            self.api.hf_hub_download(self.repository, name, repo_type=self.kind, revision=self.commit, local_dir=folder)

        with self._told(), ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(download, names))

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Raises UserError, as one sentence, for what the client raises within the block."""
        from huggingface_hub import errors

        kinds: Any = (
            errors.HfHubHTTPError.__mro__[1],
            OSError,
            ValueError,
            RuntimeError,
        )  # the first: of its HTTP client
        try:
            yield
        except UserError:
            raise
        except kinds as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            if isinstance(error, errors.RevisionNotFoundError):
                raise UserError(f"{self.name} has no revision {self.revision}; give another --revision.") from error
            if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
                log_in = "log in with `hf auth login`, or set HF_TOKEN"
                raise UserError(
                    f"{self.name} does not exist, or you may not use it; check its name, {log_in}."
                ) from error
            inner = error.__cause__ if isinstance(error, RuntimeError) else None  # of one of several uploads
            raise UserError(f"{self.name} cannot be used ({reason_of(inner or error)}); try again.") from error


def check_new(folder: Path) -> None:
    """Raises UserError if something is there already, or no folder can be made there."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise UserError(f"{folder} exists already, and nothing is overwritten; give the name of a new folder.")
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"no folder can be made in {there}; give the name of a folder elsewhere.")
