"""The address of a store in a PostgreSQL database: libpq's own, and the schema as one more parameter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from drlhp.errors import UserError

SCHEMA = "drlhp"  # where the address names none
NAME = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
EXAMPLE = "postgresql://USER@HOST/DATABASE?schema=NAME"


@dataclass(frozen=True)
class Address:
    """Where a store lies; it never holds a password."""

    server: str  # what libpq connects to
    schema: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Returns the address in a text. Raises UserError if it cannot be one, or holds a password."""
        try:
            parts = urlsplit(text.strip())
            words = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
            has_password = parts.password is not None or any("password" in name for name, _ in words)
        except ValueError as error:
            raise UserError(f"an address of a store looks like {EXAMPLE}, and this one cannot be read.") from error
        if has_password:  # never repeated in the message
            raise UserError(
                "leave the password out of the address of the store, because lists of processes show it: set "
                "PGPASSWORD to it, or write it into ~/.pgpass."
            )
        if parts.scheme not in ("postgresql", "postgres") or parts.fragment or "options" in dict(words):
            raise UserError(f"an address of a store looks like {EXAMPLE}, and this one does not.")
        schema = dict(words).get("schema", SCHEMA)
        if not NAME.fullmatch(schema):
            raise UserError(
                f"?schema= in the address of a store must be a name of small letters, digits and _, not {schema!r:.80}."
            )
        rest = urlencode([(name, value) for name, value in words if name != "schema"], quote_via=quote)
        return cls(f"postgresql://{parts.netloc}{parts.path}{'?' + rest if rest else ''}", schema)

    def __str__(self) -> str:
        return f"{self.server}{'&' if '?' in self.server else '?'}schema={self.schema}"

    def link_from(self, path: Path) -> None:
        """Makes a file that leads here; those who open it need their own password."""
        draft = path.with_name(f"{path.name}.new")
        draft.write_text(f"{self}\n", encoding="utf-8")
        draft.replace(path)
