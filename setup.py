"""Builds the library side as the package `drlhp`: drlhp.py and the modules that it imports, and nothing else.

In a clone those modules lie side by side, under names such as `networks` that would collide with other people's. In
the package they lie in `drlhp/`, and the imports of each other are written anew to say so.
"""

from __future__ import annotations

import ast
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
ENTRY = ROOT / "drlhp.py"
STATIC = sorted((ROOT / "label_server" / "static").iterdir())


def source_of(name: str) -> Path | None:
    """The clone's file of a module, such as `label_server.app`; None if the module is not ours."""
    path = ROOT.joinpath(*name.split("."))
    files = [path.with_suffix(".py"), path / "__init__.py"]
    return next((file for file in files if file.is_file()), None)


def imports(source: str) -> list[tuple[ast.Import | ast.ImportFrom, list[str]]]:
    """The import statements of a module, with the modules that each of them may name."""
    found: list[tuple[ast.Import | ast.ImportFrom, list[str]]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.append((node, [alias.name for alias in node.names]))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node, [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]))
    return found


def library() -> dict[Path, str]:
    """Every file of ours that drlhp.py reaches, with its source; packages as a whole."""
    files, waiting = dict[Path, str](), [ENTRY]
    while waiting:
        path = waiting.pop()
        if path in files:
            continue
        files[path] = path.read_text()
        if path.name == "__init__.py":
            waiting += path.parent.glob("*.py")
        for _, names in imports(files[path]):
            waiting += [file for name in names if (file := source_of(name))]
    return files


def inside_package(source: str) -> str:
    """The same module with its imports of ours as they are in the package."""
    lines = source.splitlines(keepends=True)
    for node, names in imports(source):
        if names[0].split(".")[0] == ENTRY.stem or not source_of(names[0]):
            continue
        line, start = lines[node.lineno - 1], node.col_offset
        if isinstance(node, ast.ImportFrom):
            new = line[start:].replace(f"from {names[0]}", f"from {ENTRY.stem}.{names[0]}", 1)
        elif node.names[0].asname:
            new = line[start:].replace(f"import {names[0]}", f"import {ENTRY.stem}.{names[0]}", 1)
        else:
            new = line[start:].replace("import ", f"from {ENTRY.stem} import ", 1)
        lines[node.lineno - 1] = line[:start] + new
    return "".join(lines)


class BuildLibrary(build_py):
    """Writes the package in place of copying what lies in the clone."""

    def run(self) -> None:
        if self.editable_mode:
            raise SystemExit("drlhp cannot be installed with -e: leave that out, or put the clone on the PYTHONPATH.")
        self.written: list[str] = []
        for path, source in library().items():
            place = Path("__init__.py") if path == ENTRY else path.relative_to(ROOT)
            self._write(place, inside_package(source).encode())
        for path in STATIC:
            self._write(path.relative_to(ROOT), path.read_bytes())

    def _write(self, place: Path, data: bytes) -> None:
        target = Path(self.build_lib) / ENTRY.stem / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        self.written.append(str(target))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return self.written

    def get_source_files(self) -> list[str]:
        return [str(path.relative_to(ROOT)) for path in [*library(), *STATIC]]


setup(packages=[ENTRY.stem], cmdclass={"build_py": BuildLibrary})
