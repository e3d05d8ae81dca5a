"""Pickles of plain values are read as Python reads them; all others are refused, before they cost anything."""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections.abc import Callable
from typing import Any

import pytest

from drlhp.cli import pickles
from drlhp.cli.pickles import BoundedStream, PickleReader

VALUES: dict[str, Any] = {
    "numbers": [0, 255, 256, 65536, -1, 2**62, -(2**63), 0.5, float("inf"), True, False, None],
    "text": ["", "š", "x" * 300],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "dictionaries": [{}, {1: {2: 3}}, dict.fromkeys(range(2000), "value")],
}


def read(data: bytes, admitted: dict[tuple[str, str], Any] | None = None) -> Any:
    return PickleReader(admitted or {}).read(BoundedStream(io.BytesIO(data), 2**20, 2**16))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_are_read_as_python_reads_them(protocol: int) -> None:
    shared = [1, 2]
    value = {**VALUES, "twice": [shared, shared]}
    found = read(pickle.dumps(value, protocol))
    assert found == value and found["twice"][0] is found["twice"][1]
    if protocol > 2:  # protocol 2 has no bytes
        data = [b"", b"x" * 10, b"x" * 300, *([bytearray(b"xyz")] if protocol == 5 else [])]
        assert read(pickle.dumps(data, protocol)) == data


def test_nothing_is_called_but_what_is_admitted() -> None:
    class Call:
        def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
            self.reduced = function, arguments

        def __reduce__(self) -> tuple[Any, ...]:
            return self.reduced

    for call in (Call(os.system, "false"), Call(eval, "1"), Call(getattr, "", "join"), object()):
        with pytest.raises(ValueError, match="it asks for"):
            read(pickle.dumps(call))
    name = (os.system.__module__, "system")
    assert read(pickle.dumps(Call(os.system, "false")), {name: lambda command: f"not {command}"}) == "not false"


DAMAGED = (
    b" N junk . e. a. ]N\x86R. ( h\x00. Nb. NNR. ]NNs. NNN\x93. }]Ns. }K\x01\x85Ns. }(K\x01u.".split(b" ")
    + [b"I1\n.", b"S'x'\n.", b"cos\nsystem\n.", b"c" + b"x" * 10_000 + b"\nsystem\n."]
    + [b"\x8b" + struct.pack("<i", 2**31 - 1) + b"x"]
    + [code + struct.pack("<Q", 2**40) + b"x" for code in (b"\x8d", b"\x8e", b"\x96")]
    + [b"}\x8a\x09" + bytes(8) + b"\x01Ns."]  # 2**64, which no hash is
)


@pytest.mark.parametrize("data", DAMAGED)
def test_what_is_damaged_or_needs_other_operations_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, IndexError, KeyError, TypeError, AttributeError)):
        read(data)


def test_a_place_beyond_all_values_costs_no_memory_for_those_before_it() -> None:
    assert read(b"\x80\x03Nr\xff\xff\xff\xff.") is None  # Python's own unpickler takes 32 GB for this.


def test_no_more_is_read_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="a value of 65,537 bytes"):
        read(pickle.dumps(bytes(2**16 + 1)))
    with pytest.raises(ValueError, match="unpacks to more"):
        read(pickle.dumps([bytes([n]) * 60_000 for n in range(20)]))
    monkeypatch.setattr(pickles, "MOST_OPERATIONS", 100)
    with pytest.raises(ValueError, match="more operations"):
        read(b"}" * 101 + b".")
