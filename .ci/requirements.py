"""Prints the exact packages that run.py needs, for pip, and those of the Pipfile's [dev-packages] that are named.

python .ci/requirements.py huggingface_hub | pip install --constraint constraints.txt --requirement /dev/stdin
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(names: list[str]) -> None:
    """Prints one package a line. Raises SystemExit for a name that the Pipfile lacks."""
    pipfile = tomllib.loads((Path(__file__).parent.parent / "Pipfile").read_text())
    others = pipfile["dev-packages"]
    unknown = [name for name in names if name not in others]
    if unknown:
        sys.exit(f"{unknown[0]} is none of the Pipfile's [dev-packages]: {', '.join(others)}.")
    for name, version in {**pipfile["packages"], **{name: others[name] for name in names}}.items():
        extras = f"[{','.join(version['extras'])}]" if isinstance(version, dict) else ""
        print(f"{name}{extras}{version['version'] if isinstance(version, dict) else version}")


if __name__ == "__main__":
    main(sys.argv[1:])
