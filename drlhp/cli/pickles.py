"""Reads pickles of plain values, without Python's own unpickler.

It knows the operations that dictionaries, lists, tuples, numbers, text, bytes and admitted names need, and no other.
So nothing but admitted names is ever called, and a few bytes cannot ask for more memory than they hold.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

MOST_OPERATIONS = 10_000_000  # 3000 labels of the original project need 3 million, in the older of its two forms.
LONGEST_LINE = 200  # the names of modules and classes
LITERALS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
MAKERS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
LAST_HASH = 2**63  # keys of the original project are what `hash` returns


class Stream(Protocol):
    """A stream to read a pickle from."""

    def read(self, size: int, /) -> bytes: ...
    def readline(self, /) -> bytes: ...


class BoundedStream:
    """Reads another stream, but no more bytes than it may hold, nor more at once than its longest value has.

    Both methods raise ValueError if it holds more.
    """

    def __init__(self, stream: Any, most_bytes: int, longest_value: int) -> None:
        self._stream, self._left, self._longest = stream, most_bytes, longest_value

    def read(self, size: int, /) -> bytes:
        if size > self._longest:
            raise ValueError(f"a value of {size:,} bytes")
        return self._counted(self._stream.read(size))

    def readline(self) -> bytes:
        return self._counted(self._stream.readline(LONGEST_LINE))

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("it unpacks to more than a store of labels holds")
        return data


class Admitted(Protocol):
    """An object of an admitted class, which is given its state."""

    def build(self, state: Any) -> None: ...


class PickleReader:
    """Builds the value of one pickle.

    Args:
        admitted: by module and name, the function or class to call instead of the one that the pickle names, or a value
            that is never called. An object whose state follows has the method `build`.
    """

    def __init__(self, admitted: Mapping[tuple[str, str], Any]) -> None:
        self._admitted = admitted
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def read(self, stream: Stream) -> Any:
        """Returns the value. Raises ValueError, and other exceptions if the pickle is damaged."""
        for number, (operation, argument, _) in enumerate(pickletools.genops(stream)):  # type: ignore[arg-type]
            if number == MOST_OPERATIONS:
                raise ValueError("it has more operations than a store of labels needs")
            self._carry_out(operation.name, argument)
        return self._stack.pop()

    def _carry_out(self, name: str, argument: Any) -> None:
        """Carries out one operation; the names are those of pickletools, which says what each does."""
        stack = self._stack
        if name in LITERALS:
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name in MAKERS:
            stack.append(MAKERS[name]())
        elif name in TUPLES:
            stack.append(tuple(self._popped(len(stack) - TUPLES[name])))
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(self._popped(self._marks.pop())))
        elif name in ("APPEND", "APPENDS"):
            items = self._popped(self._marks.pop() if name == "APPENDS" else len(stack) - 1)
            self._top(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._popped(self._marks.pop() if name == "SETITEMS" else len(stack) - 2)
            self._set_items(items[0::2], items[1::2])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            module, attribute = argument.split(" ") if name == "GLOBAL" else self._popped(len(stack) - 2)
            if (module, attribute) not in self._admitted:
                raise ValueError(f"it asks for {module}.{attribute}, which no store of labels holds")
            stack.append(self._admitted[module, attribute])
        elif name in ("REDUCE", "NEWOBJ"):
            function, arguments = self._popped(len(stack) - 2)
            stack.append(function(*arguments))
        elif name == "BUILD":
            (state,) = self._popped(len(stack) - 1)
            stack[-1].build(state)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"it uses {name}, which no store of labels does")

    def _popped(self, start: int) -> list[Any]:
        """Removes the values from the stack's place `start` on, and returns them. Raises ValueError if it has none."""
        if start < 0:
            raise ValueError("it is damaged")
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _top(self, kind: type) -> Any:
        """Returns the value on top of the stack. Raises ValueError if it is of another type."""
        if type(self._stack[-1]) is not kind:
            raise ValueError("it is damaged")
        return self._stack[-1]

    def _set_items(self, keys: list[Any], values: list[Any]) -> None:
        """Fills the dictionary on top of the stack; its keys are text or hashes, which are compared in no time."""
        for key, value in zip(keys, values, strict=True):
            if type(key) is not str and not (type(key) is int and -LAST_HASH <= key < LAST_HASH):
                raise ValueError("a key that is neither a name nor a hash")
            self._top(dict)[key] = value
