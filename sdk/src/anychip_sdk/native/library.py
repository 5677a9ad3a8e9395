"""Open a shared object and check it against anychip_backend.h. Knows tables and texts; runs nothing on a device."""

from __future__ import annotations

import ctypes
import os
import re
from ctypes import Structure
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from anychip_sdk.errors import BackendBroken, BackendIncompatible, BackendNotFound, MemoryInsufficient
from anychip_sdk.native import abi

S = TypeVar("S", bound=Structure)

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_TAKEN = ("auto", "native", "reference")
_SIZE_MAX = 1 << 16  # no struct of ours comes near it, so more is not a size

_STREAM_SLOTS = ("create_stream", "destroy_stream")
_EVENT_SLOTS = ("record_event", "wait_event", "query_event", "synchronize_event", "elapsed", "destroy_event")
_SLOT_SLOTS = ("copy_slots", "clear_slots")
#: by table; tables that are not named have none
OPTIONAL_SLOTS = {"device": (*_STREAM_SLOTS, *_EVENT_SLOTS, "delay", "handle"), "kv_pool": _SLOT_SLOTS}


class Need(NamedTuple):
    """What a kernel needs of a fact, as data."""

    fact: str
    kind: int
    values: tuple[int | str, ...]


@dataclass(frozen=True)
class NativeOp:
    """One entry of the op table."""

    name: str
    kernel: str
    version: int
    dtypes: tuple[str, ...]
    flags: int
    run: ctypes._CFunctionType
    needs: tuple[Need, ...]


class Library:
    """A loaded and checked shared object.

    Attributes:
        path: the file.
        name, vendor, version, absence: what it says of itself.
        device: its device table.
        ops: its op table.
        weights, kv_pool: its optional tables; None where it has none.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        entry = self._entry()
        address = entry(abi.VERSION)
        if not address:
            raise self._broken(f"{abi.ENTRY}({abi.VERSION}) returned NULL, expected its table")
        self._check_version(address)
        table = self._struct(address, abi.BackendC, "anychip_backend_t")
        self.vendor = self._text(table.vendor, "vendor")
        self.version = self._text(table.version, "version")
        self.absence = "" if table.absence is None else table.absence.decode("utf-8", "replace")
        self.name = self._checked_name(self._text(table.name, "name"))
        self.device: abi.DeviceTableC = self._table(table.device, abi.DeviceTableC, "device")
        self._check_together("device", self.device, _STREAM_SLOTS)
        self._check_together("device", self.device, _EVENT_SLOTS)
        self.ops = self._read_ops(table)
        self.weights = self._table(table.weights, abi.WeightTableC, "weights") if table.weights else None
        self.kv_pool = self._table(table.kv_pool, abi.KVPoolTableC, "kv_pool") if table.kv_pool else None
        if self.kv_pool is not None:
            self._check_together("kv_pool", self.kv_pool, _SLOT_SLOTS)
        if self.weights is None and any(op.flags & abi.PREPARES_WEIGHT for op in self.ops):
            raise self._broken("an op is flagged as preparing weights, and the slot 'weights' is NULL")

    @property
    def where(self) -> str:
        return f"native backend {self.path}"

    def last_error(self) -> str:
        text = self.device.last_error()
        return "no reason given" if not text else text.decode("utf-8", "replace")

    def check(self, status: int, call: str) -> None:
        """Raise what a status means.

        Raises:
            MemoryInsufficient, ValueError, BackendBroken: out of memory, invalid, anything else.
        """
        if status == abi.OK:
            return
        text = f"backend '{self.name}' ({self.path.name} {self.version}): {call}: {self.last_error()}"
        if status == abi.OUT_OF_MEMORY:
            raise MemoryInsufficient(text)
        if status == abi.INVALID:
            raise ValueError(text)
        raise BackendBroken(text if status == abi.ERROR else f"{text} (status {status})")

    def describe(self, index: int) -> abi.DeviceInfoC:
        info = abi.sized(abi.DeviceInfoC)
        assert isinstance(info, abi.DeviceInfoC)
        self.check(self.device.describe(index, ctypes.byref(info)), f"describe({index})")
        if not info.flags & abi.HOST_MEMORY:
            message = f"{self.where}: device {index} has memory that the host cannot address"
            hint = "such a device needs a Python package that says how torch reaches it: docs/writing-a-backend.md"
            raise BackendIncompatible(message, hint=hint)
        if info.flags & abi.ASYNC_STREAMS and not (self.device.create_stream and self.device.delay):
            raise self._broken(
                f"describe({index}): the flag for asynchronous streams needs 'create_stream' and 'delay'"
            )
        if not 0 <= info.preferred_dtype < len(abi.DTYPES) or not info.dtypes >> info.preferred_dtype & 1:
            raise self._broken(f"describe({index}): preferred_dtype {info.preferred_dtype} is not among its dtypes")
        return info

    def device_count(self) -> int:
        count = ctypes.c_int32(-1)
        self.check(self.device.device_count(ctypes.byref(count)), "device_count")
        if count.value < 0:
            raise self._broken(f"device_count says {count.value}, expected 0 or more")
        return count.value

    def _entry(self) -> ctypes._CFunctionType:
        if not self.path.is_file():
            kind = "is a folder" if self.path.is_dir() else "does not exist"
            message = f"{self.where} {kind}"
            raise BackendNotFound(message, hint="correct backend.plugin_path, which is relative to the recipe's file")
        try:
            opened = ctypes.CDLL(str(self.path))
        except OSError as error:
            message = f"{self.where} can't be loaded as a shared object: {error}"
            hint = "build it as a shared object for this machine, with all that it links to"
            raise BackendBroken(message, hint=hint) from error
        try:
            return abi.EntryFunction((abi.ENTRY, opened))
        except AttributeError as error:
            message = f"{self.where} has no symbol '{abi.ENTRY}'"
            hint = 'define it with the export macro of anychip_backend.h, and extern "C" where it is C++'
            raise BackendBroken(message, hint=hint) from error

    def _check_version(self, address: int) -> None:
        version = ctypes.c_uint32.from_address(address + abi.BackendC.abi_version.offset).value
        if version != abi.VERSION:
            message = f"{self.where} was built for ABI version {version}; this is ABI version {abi.VERSION}"
            hint = "build it with the anychip_backend.h of the installed anychip-sdk"
            raise BackendIncompatible(message, hint=hint)

    def _struct(self, address: int, kind: type[S], title: str) -> S:
        """A copy of a struct of the library's, zero where the library was compiled before a field existed."""
        size = ctypes.c_uint32.from_address(address).value
        expected = ctypes.sizeof(kind)
        if not expected <= size <= _SIZE_MAX:
            message = f"{self.where}: {title}: struct_size is {size}, expected {expected} or a little more"
            raise BackendBroken(message, hint="set struct_size to sizeof the struct, compiled with anychip_backend.h")
        made = kind()
        ctypes.memmove(ctypes.addressof(made), address, expected)
        return made

    def _table(self, address: int | None, kind: type[S], slot: str) -> S:
        if not address:
            raise self._broken(f"the required slot '{slot}' is NULL")
        made = self._struct(address, kind, f"anychip_{'weight' if slot == 'weights' else slot}_table_t")
        optional = OPTIONAL_SLOTS.get(slot, ())
        names = [name for name, *_ in kind._fields_[2:]]
        missing = [name for name in names if name not in optional and not getattr(made, name)]
        if missing:
            listed = ", ".join(f"'{slot}.{name}'" for name in missing)
            raise self._broken(f"required slots are NULL: {listed}")
        return made

    def _check_together(self, slot: str, table: Structure, names: tuple[str, ...]) -> None:
        absent = [name for name in names if not getattr(table, name)]
        if absent and len(absent) != len(names):
            listed = ", ".join(f"'{slot}.{name}'" for name in absent)
            raise self._broken(f"{listed} NULL, but not all of {', '.join(names)}: they come together or not at all")

    def _read_ops(self, table: abi.BackendC) -> tuple[NativeOp, ...]:
        if not table.op_count:
            return ()
        if not table.ops:
            raise self._broken(f"op_count is {table.op_count}, and 'ops' is NULL")
        stride = ctypes.c_uint32.from_address(table.ops).value
        return tuple(self._read_op(table.ops + index * stride, index) for index in range(table.op_count))

    def _read_op(self, address: int, index: int) -> NativeOp:
        found = self._struct(address, abi.OpC, f"anychip_op_t {index}")
        name = self._text(found.name, f"ops[{index}].name")
        if not found.run:
            raise self._broken(f"the required slot 'ops[{index}].run' ({name}) is NULL")
        if found.dtypes >> len(abi.DTYPES):
            raise self._broken(f"ops[{index}] ({name}): dtypes {found.dtypes:#x} has bits that are no dtype")
        dtypes = tuple(title for bit, title in enumerate(abi.DTYPES) if found.dtypes >> bit & 1)
        needs = tuple(self._read_need(found.needs[i], name) for i in range(found.need_count))
        kernel = self._text(found.kernel, f"ops[{index}].kernel")
        return NativeOp(name, kernel, found.version, dtypes, found.flags, found.run, needs)

    def _read_need(self, need: abi.NeedC, op: str) -> Need:
        fact = self._text(need.fact, f"a need of {op}")
        several = need.kind == abi.NEED_ONE_OF
        if not abi.NEED_ONE_OF <= need.kind <= abi.NEED_MULTIPLE_OF or need.count < 1 or (need.count > 1 > several):
            raise self._broken(f"{op}: the need on {fact} has kind {need.kind} and {need.count} values")
        if need.texts and several:
            return Need(fact, need.kind, tuple(self._text(need.texts[i], fact) for i in range(need.count)))
        if not need.numbers:
            raise self._broken(f"{op}: the need on {fact} has no values")
        return Need(fact, need.kind, tuple(need.numbers[i] for i in range(need.count)))

    def _text(self, value: bytes | None, slot: str) -> str:
        if not value:
            raise self._broken(f"the required text '{slot}' is NULL or empty")
        return value.decode("utf-8", "replace")

    def _checked_name(self, name: str) -> str:
        if not _NAME.fullmatch(name) or name in _TAKEN:
            text = (
                f"its name is '{name}', expected lower-case letters, digits, - and _, and none of {', '.join(_TAKEN)}"
            )
            raise self._broken(text)
        return name

    def _broken(self, what: str) -> BackendBroken:
        return BackendBroken(f"{self.where}: {what}", hint="see anychip_backend.h, which ships with anychip-sdk")


__all__ = ["OPTIONAL_SLOTS", "Library", "NativeOp", "Need"]
