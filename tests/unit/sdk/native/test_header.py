"""anychip_backend.h is plain C, and what Python thinks of its structs is what a compiler thinks."""

import ctypes
import re
import subprocess

import pytest

from anychip_sdk.native import INCLUDE, abi
from support.native_libraries import compiler

HEADER = (INCLUDE / "anychip_backend.h").read_text(encoding="utf-8")
STRUCTS = {
    "anychip_device_info_t": abi.DeviceInfoC,
    "anychip_config_t": abi.ConfigC,
    "anychip_device_table_t": abi.DeviceTableC,
    "anychip_tensor_t": abi.TensorC,
    "anychip_scalar_t": abi.ScalarC,
    "anychip_step_group_t": abi.StepGroupC,
    "anychip_step_t": abi.StepC,
    "anychip_args_t": abi.ArgsC,
    "anychip_need_t": abi.NeedC,
    "anychip_op_t": abi.OpC,
    "anychip_weight_table_t": abi.WeightTableC,
    "anychip_state_tensor_t": abi.StateTensorC,
    "anychip_state_group_t": abi.StateGroupC,
    "anychip_kv_spec_t": abi.KVSpecC,
    "anychip_kv_layout_t": abi.KVLayoutC,
    "anychip_kv_pool_table_t": abi.KVPoolTableC,
    "anychip_backend_t": abi.BackendC,
}
C99 = ("-x", "c", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")


def test_every_struct_of_the_header_is_compared():
    assert set(re.findall(r"^\} (anychip_\w+_t);", HEADER, re.MULTILINE)) == set(STRUCTS)


def test_sizes_and_offsets_are_the_compilers(tmp_path):
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));' for field, *_ in struct._fields_]
    source, program = tmp_path / "sizes.c", tmp_path / "sizes"
    body = "\n".join(lines)
    source.write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "anychip_backend.h"\nint main(void) {{{body} return 0;}}\n'
    )
    subprocess.run([compiler(), *C99, f"-I{INCLUDE}", "-o", program, source], check=True, timeout=120)
    told = dict(line.split() for line in subprocess.check_output([program], text=True).splitlines())
    expected = {}
    for name, struct in STRUCTS.items():
        expected[name] = str(ctypes.sizeof(struct))
        expected.update({f"{name}.{field}": str(getattr(struct, field).offset) for field, *_ in struct._fields_})
    assert told == expected


@pytest.mark.parametrize("name", abi.DTYPES)
def test_dtypes_have_the_numbers_of_the_header(name):
    assert f"#define ANYCHIP_{name.upper()} {abi.DTYPES.index(name)}\n" in HEADER


@pytest.mark.parametrize(
    ("macro", "value"),
    [
        ("ABI_VERSION", f"{abi.VERSION}u"),
        ("MAX_DIMS", abi.MAX_DIMS),
        ("OK", abi.OK),
        ("ERROR", abi.ERROR),
        ("OUT_OF_MEMORY", abi.OUT_OF_MEMORY),
        ("INVALID", abi.INVALID),
        ("DEVICE_HOST_MEMORY", f"{abi.HOST_MEMORY}u"),
        ("DEVICE_ASYNC_STREAMS", f"{abi.ASYNC_STREAMS}u"),
        ("TENSOR_PREPARED", f"{abi.PREPARED}u"),
        ("OP_STRIDED_ROWS", f"{abi.STRIDED_ROWS}u"),
        ("OP_PREPARES_WEIGHT", f"{abi.PREPARES_WEIGHT}u"),
        ("COPY_ANY", abi.COPY_ANY),
        ("STATE_PAGED", abi.STATE_PAGED),
        ("STATE_SLOT", abi.STATE_SLOT),
        ("SCALAR_NONE", abi.SCALAR_NONE),
        ("SCALAR_INT", abi.SCALAR_INT),
        ("SCALAR_FLOAT", abi.SCALAR_FLOAT),
        ("NEED_ONE_OF", abi.NEED_ONE_OF),
        ("NEED_AT_MOST", abi.NEED_AT_MOST),
        ("NEED_AT_LEAST", abi.NEED_AT_LEAST),
        ("NEED_MULTIPLE_OF", abi.NEED_MULTIPLE_OF),
    ],
)
def test_constants_are_those_of_the_header(macro, value):
    assert re.search(rf"^#define ANYCHIP_{macro} {value}\b", HEADER, re.MULTILINE)


def test_the_entry_is_declared_in_the_header():
    assert f"{abi.ENTRY}(uint32_t host_abi_version);" in HEADER


@pytest.mark.parametrize("table", ["device", "weight", "kv_pool"])
def test_optional_slots_are_those_that_the_loader_takes_as_optional(table):
    from anychip_sdk.native.library import OPTIONAL_SLOTS

    body = HEADER.split(f"typedef struct anychip_{table}_table {{")[1].split(f"}} anychip_{table}_table_t;")[0]
    optional = set()
    for comment, functions in re.findall(r"/\*(.*?)\*/((?:(?!/\*).)*)", body, re.DOTALL):
        if comment.strip().startswith("(optional"):
            optional |= set(re.findall(r"\(\*(\w+)\)", functions))
    assert optional == set(OPTIONAL_SLOTS.get(table, ()))
