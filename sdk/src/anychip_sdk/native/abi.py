"""The structs and numbers of anychip_backend.h, for ctypes. Knows their layout; knows no library and no torch."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)

VERSION = 1
MAX_DIMS = 6
ENTRY = "anychip_backend_entry"

OK, ERROR, OUT_OF_MEMORY, INVALID = range(4)

#: dtype names by their number; the names are torch's
DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "bool",
)

HOST_MEMORY, ASYNC_STREAMS = 1, 2  # flags of a device
PREPARED = 1  # flag of a tensor
STRIDED_ROWS, PREPARES_WEIGHT = 1, 2  # flags of an op
COPY_ANY = 0
STATE_PAGED, STATE_SLOT = range(2)
SCALAR_NONE, SCALAR_INT, SCALAR_FLOAT = range(3)
NEED_ONE_OF, NEED_AT_MOST, NEED_AT_LEAST, NEED_MULTIPLE_OF = range(4)

_u32, _i32, _i64, _u64 = c_uint32, c_int32, c_int64, c_uint64
_text, _any = c_char_p, c_void_p


class DeviceInfoC(Structure):
    _fields_ = (
        ("struct_size", _u32),
        ("flags", _u32),
        ("bytes_total", _u64),
        ("bytes_free", _u64),
        ("dtypes", _u32),
        ("preferred_dtype", _i32),
        ("product", _text),
        ("driver", _text),
        ("runtime", _text),
        ("firmware", _text),
    )


class ConfigC(Structure):
    _fields_ = (
        ("struct_size", _u32),
        ("threads", _i32),
        ("emulate", _i32),
        ("option_count", _u32),
        ("option_names", POINTER(_text)),
        ("option_values", POINTER(_text)),
    )


class DeviceTableC(Structure):
    _fields_ = (
        ("struct_size", _u32),
        ("reserved", _u32),
        ("device_count", CFUNCTYPE(_i32, POINTER(_i32))),
        ("describe", CFUNCTYPE(_i32, _i32, POINTER(DeviceInfoC))),
        ("init", CFUNCTYPE(_i32, _i32, POINTER(ConfigC), POINTER(_any))),
        ("destroy", CFUNCTYPE(_i32, _any)),
        ("memory", CFUNCTYPE(_i32, _any, POINTER(_u64), POINTER(_u64))),
        ("alloc", CFUNCTYPE(_i32, _any, _u64, _u64, POINTER(_any))),
        ("free", CFUNCTYPE(_i32, _any, _any)),
        ("copy", CFUNCTYPE(_i32, _any, _any, _any, _u64, _i32, _any)),
        ("synchronize", CFUNCTYPE(_i32, _any, _any)),
        ("last_error", CFUNCTYPE(_text)),
        ("create_stream", CFUNCTYPE(_i32, _any, _i32, POINTER(_any))),
        ("destroy_stream", CFUNCTYPE(_i32, _any, _any)),
        ("record_event", CFUNCTYPE(_i32, _any, _any, POINTER(_any))),
        ("wait_event", CFUNCTYPE(_i32, _any, _any, _any)),
        ("query_event", CFUNCTYPE(_i32, _any, _any, POINTER(_i32))),
        ("synchronize_event", CFUNCTYPE(_i32, _any, _any)),
        ("elapsed", CFUNCTYPE(_i32, _any, _any, _any, POINTER(c_double))),
        ("destroy_event", CFUNCTYPE(_i32, _any, _any)),
        ("delay", CFUNCTYPE(_i32, _any, _any, c_double)),
        ("handle", CFUNCTYPE(_any, _any)),
    )


class TensorC(Structure):
    _fields_ = (
        ("data", _any),
        ("byte_offset", _u64),
        ("dtype", _i32),
        ("ndim", _i32),
        ("flags", _u32),
        ("reserved", _u32),
        ("shape", _i64 * MAX_DIMS),
        ("strides", _i64 * MAX_DIMS),
    )


class ScalarValueC(Union):
    _fields_ = (("as_int", _i64), ("as_float", c_double))


class ScalarC(Structure):
    _fields_ = (("kind", _i32), ("reserved", _i32), ("value", ScalarValueC))


class StepGroupC(Structure):
    _fields_ = (
        ("kind", _i32),
        ("pages_max", _i32),
        ("page_table", _any),
        ("slots", _any),
    )


class StepC(Structure):
    _fields_ = (
        ("struct_size", _u32),
        ("rows", _i32),
        ("tokens", _i32),
        ("logits", _i32),
        ("page_size", _i32),
        ("decode_rows", _i32),
        ("group_count", _i32),
        ("reserved", _i32),
        ("token_ids", _any),
        ("positions", _any),
        ("query_start", _any),
        ("context_lens", _any),
        ("logit_rows", _any),
        ("query_lens_host", POINTER(_i32)),
        ("context_lens_host", POINTER(_i32)),
        ("groups", POINTER(StepGroupC)),
    )


class ArgsC(Structure):
    _fields_ = (
        ("struct_size", _u32),
        ("tensor_count", _u32),
        ("scalar_count", _u32),
        ("reserved", _u32),
        ("tensors", _any),
        ("scalars", _any),
        ("step", _any),
        ("device", _any),
        ("stream", _any),
    )


class NeedC(Structure):
    _fields_ = (
        ("fact", _text),
        ("kind", _i32),
        ("count", _u32),
        ("numbers", POINTER(_i64)),
        ("texts", POINTER(_text)),
    )


class OpC(Structure):
    _fields_ = (
        ("struct_size", _u32),
        ("version", _i32),
        ("name", _text),
        ("kernel", _text),
        ("dtypes", _u32),
        ("flags", _u32),
        ("run", CFUNCTYPE(_i32, _any)),
        ("needs", POINTER(NeedC)),
        ("need_count", _u32),
        ("reserved", _u32),
    )


class WeightTableC(Structure):
    _fields_ = (
        ("struct_size", _u32),
        ("reserved", _u32),
        ("prepared_bytes", CFUNCTYPE(_i32, _any, _text, _text, POINTER(TensorC), POINTER(_u64))),
        ("prepare", CFUNCTYPE(_i32, _any, _text, _text, POINTER(TensorC), _any)),
    )


class StateTensorC(Structure):
    _fields_ = (
        ("name", _text),
        ("dtype", _i32),
        ("ndim", _i32),
        ("shape", _i64 * MAX_DIMS),
    )


class StateGroupC(Structure):
    _fields_ = (
        ("name", _text),
        ("kind", _i32),
        ("layers", _i32),
        ("window", _i64),
        ("tensor_count", _u32),
        ("reserved", _u32),
        ("tensors", POINTER(StateTensorC)),
    )


class KVSpecC(Structure):
    _fields_ = (
        ("struct_size", _u32),
        ("group_count", _u32),
        ("groups", POINTER(StateGroupC)),
        ("page_size", _i32),
        ("slots", _i32),
        ("pages_max", _i64),
        ("budget_bytes", _u64),
    )


class KVLayoutC(Structure):
    _fields_ = (
        ("struct_size", _u32),
        ("alignment", _u32),
        ("pages", _i64),
        ("bytes_per_token", _u64),
        ("bytes_per_slot", _u64),
    )


class KVPoolTableC(Structure):
    _fields_ = (
        ("struct_size", _u32),
        ("reserved", _u32),
        ("create", CFUNCTYPE(_i32, _any, POINTER(KVSpecC), POINTER(KVLayoutC), POINTER(_any))),
        ("destroy", CFUNCTYPE(_i32, _any)),
        ("alloc", CFUNCTYPE(_i32, _any, _i64, POINTER(_i64))),
        ("free", CFUNCTYPE(_i32, _any, _i64, POINTER(_i64))),
        ("retain", CFUNCTYPE(_i32, _any, _i64, POINTER(_i64))),
        ("refcount", CFUNCTYPE(_i32, _any, _i64, POINTER(_i64))),
        ("copy_pages", CFUNCTYPE(_i32, _any, _i64, POINTER(_i64), POINTER(_i64))),
        ("tensors", CFUNCTYPE(_i32, _any, _i32, _i32, POINTER(TensorC))),
        ("stats", CFUNCTYPE(_i32, _any, POINTER(_i64), POINTER(_i64))),
        ("copy_slots", CFUNCTYPE(_i32, _any, _i64, POINTER(_i64), POINTER(_i64))),
        ("clear_slots", CFUNCTYPE(_i32, _any, _i64, POINTER(_i64))),
    )


class BackendC(Structure):
    _fields_ = (
        ("struct_size", _u32),
        ("abi_version", _u32),
        ("name", _text),
        ("vendor", _text),
        ("version", _text),
        ("absence", _text),
        ("device", _any),
        ("ops", _any),
        ("op_count", _u32),
        ("reserved", _u32),
        ("weights", _any),
        ("kv_pool", _any),
    )


EntryFunction = CFUNCTYPE(_any, _u32)


def sized(struct: type[Structure]) -> Structure:
    """A zeroed struct that says how large it is."""
    made = struct()
    made.struct_size = ctypes.sizeof(struct)
    return made


__all__ = [
    "ASYNC_STREAMS",
    "COPY_ANY",
    "DTYPES",
    "ENTRY",
    "ERROR",
    "HOST_MEMORY",
    "INVALID",
    "MAX_DIMS",
    "NEED_AT_LEAST",
    "NEED_AT_MOST",
    "NEED_MULTIPLE_OF",
    "NEED_ONE_OF",
    "OK",
    "OUT_OF_MEMORY",
    "PREPARED",
    "PREPARES_WEIGHT",
    "SCALAR_FLOAT",
    "SCALAR_INT",
    "SCALAR_NONE",
    "STATE_PAGED",
    "STATE_SLOT",
    "STRIDED_ROWS",
    "VERSION",
    "ArgsC",
    "BackendC",
    "ConfigC",
    "DeviceInfoC",
    "DeviceTableC",
    "EntryFunction",
    "KVLayoutC",
    "KVPoolTableC",
    "KVSpecC",
    "NeedC",
    "OpC",
    "ScalarC",
    "ScalarValueC",
    "StateGroupC",
    "StateTensorC",
    "StepC",
    "StepGroupC",
    "TensorC",
    "WeightTableC",
    "sized",
]
