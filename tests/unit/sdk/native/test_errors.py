"""Everything that can be wrong with a shared object has an error of its own, and none ends the process."""

import re
import sys

import pytest

from anychip_sdk.device import DeviceConfig
from anychip_sdk.errors import BackendBroken, BackendIncompatible, BackendNotFound, DeviceAbsent, MemoryInsufficient
from anychip_sdk.native.loader import load_native, load_native_backend
from anychip_sdk.native.trial import try_out
from support.native_libraries import build_faulty

FAULTS = [
    ("null table", BackendBroken, r"anychip_backend_entry\(1\) returned NULL"),
    ("abi version", BackendIncompatible, "was built for ABI version 7; this is ABI version 1"),
    ("backend size", BackendBroken, r"anychip_backend_t: struct_size is 4, expected \d+ or a little more"),
    ("device size", BackendBroken, r"anychip_device_table_t: struct_size is 24, expected \d+ or a little more"),
    ("op size", BackendBroken, "anychip_op_t 1: struct_size is 1048576"),
    ("null device", BackendBroken, "the required slot 'device' is NULL"),
    ("null alloc", BackendBroken, "required slots are NULL: 'device.alloc', 'device.copy'"),
    ("null run", BackendBroken, r"the required slot 'ops\[1\].run' \(rms_norm\) is NULL"),
    ("null ops", BackendBroken, "op_count is 2, and 'ops' is NULL"),
    ("no kernel name", BackendBroken, r"the required text 'ops\[1\].kernel' is NULL or empty"),
    ("no version", BackendBroken, "the required text 'version' is NULL or empty"),
    ("half the streams", BackendBroken, "'device.destroy_stream' NULL, but not all"),
    ("half the events", BackendBroken, "'device.destroy_event' NULL, but not all"),
    ("pool without tensors", BackendBroken, "required slots are NULL: 'kv_pool.tensors'"),
    ("pool with half the slots", BackendBroken, "'kv_pool.copy_slots' NULL, but not all of copy_slots, clear_slots"),
    ("op dtypes", BackendBroken, r"ops\[1\] \(rms_norm\): dtypes 0x100000 has bits that are no dtype"),
    ("prepares without a table", BackendBroken, "the slot 'weights' is NULL"),
    ("need kind", BackendBroken, "rms_norm: the need on head_dim has kind 9"),
    ("need count", BackendBroken, "rms_norm: the need on page_size has kind 3 and 2 values"),
    ("need values", BackendBroken, "rms_norm: the need on kv_dtype has no values"),
    ("name", BackendBroken, "its name is 'Faulty!', expected lower-case letters"),
    ("taken name", BackendBroken, "its name is 'reference', expected"),
    (
        "unknown op",
        BackendBroken,
        r"registers op 'rms_nrom', which is not in the catalogue\. Did you mean 'rms_norm'\?",
    ),
    ("op version", BackendBroken, "registers 'rms_norm' v2; the catalogue has v1"),
    ("no dtypes", BackendBroken, r"registers 'rms_norm' \(picky\) for no dtype"),
    ("device memory", BackendIncompatible, "device 0 has memory that the host cannot address"),
    ("async without streams", BackendBroken, r"the flag for asynchronous streams needs 'create_stream' and 'delay'"),
    ("preferred dtype", BackendBroken, r"describe\(0\): preferred_dtype 4 is not among its dtypes"),
    ("negative count", BackendBroken, "device_count says -2, expected 0 or more"),
    ("count fails", BackendBroken, "device_count: the driver is too old"),
    ("init fails", BackendBroken, r"init\(0\): firmware 7 is too old"),
    ("crash at load", BackendBroken, "loading it crashed in a trial process: SIGSEGV"),
    ("abort in describe", BackendBroken, r"describe\(0\) crashed in a trial process: SIGABRT"),
    ("crash at init", BackendBroken, r"init\(0\) crashed in a trial process: SIGSEGV"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="signals and shared objects as Linux has them")
@pytest.mark.parametrize(("fault", "kind", "text"), FAULTS, ids=[fault for fault, *_ in FAULTS])
def test_a_fault_has_its_own_error(faulty, fault, kind, text):
    path = faulty(fault)
    with pytest.raises(kind, match=text) as raised:
        load_native_backend(path)
    assert type(raised.value) is kind
    assert path.name in str(raised.value)


def test_the_library_without_a_fault_loads(faulty):
    backend = load_native_backend(faulty())
    assert (backend.name, backend.version, backend.distribution) == ("faulty", "0.1", "lib0.so")
    (device,) = backend.probe()
    assert (device.name, device.product, dict(device.versions)) == ("faulty:0", "faulty", {"firmware": "7"})


def test_a_library_of_a_later_header_loads(faulty):
    assert load_native_backend(faulty("longer struct")).name == "faulty"


def test_a_library_without_ops_runs_on_references(faulty):
    backend = load_native_backend(faulty("no ops"))
    assert [kernel.provider for kernel in backend.ops.kernels("linear")] == ["reference"]


def test_a_missing_symbol_is_named(tmp_path):
    with pytest.raises(BackendBroken, match="has no symbol 'anychip_backend_entry'"):
        load_native_backend(build_faulty(tmp_path, "-DNO_ENTRY"))


def test_a_missing_file_a_folder_and_a_text_are_told_apart(tmp_path):
    with pytest.raises(BackendNotFound, match=re.escape(str(tmp_path / "libnone.so")) + " does not exist"):
        load_native_backend(tmp_path / "libnone.so")
    with pytest.raises(BackendNotFound, match="is a folder"):
        load_native_backend(tmp_path)
    text = tmp_path / "libtext.so"
    text.write_text("no library")
    with pytest.raises(BackendBroken, match="can't be loaded as a shared object"):
        load_native_backend(text)


def test_a_library_that_hangs_is_given_up(faulty):
    with pytest.raises(BackendBroken, match="took more than 2 s in a trial process"):
        try_out(faulty("hang at init"), limit_s=2.0)


def test_a_failed_trial_is_not_remembered(faulty, monkeypatch):
    path = faulty("init fails")
    with pytest.raises(BackendBroken):
        try_out(path)
    monkeypatch.setenv("FAULT", "")
    try_out(path)


def test_no_device_is_told_with_the_librarys_reason(faulty):
    with pytest.raises(DeviceAbsent, match="no device present: no slot holds one"):
        load_native_backend(faulty("no device")).find_device(None)


@pytest.mark.parametrize(
    ("fault", "text"),
    [("free above total", "memory_bytes_free is 2000"), ("no product", r"describe\(0\): product is NULL")],
)
def test_a_probe_that_breaks_the_contract_is_refused(faulty, fault, text):
    backend = load_native_backend(faulty(fault))
    with pytest.raises(BackendBroken, match=text):
        backend.probe()


def opened(path, config=DeviceConfig()):  # frozen
    backend = load_native_backend(path, trial=False)
    return backend, backend.open(backend.find_device(None), config)


def test_the_configuration_reaches_init(faulty):
    opened(faulty("wants an option"), DeviceConfig(threads=3, options={"mode": "fast"}))
    with pytest.raises(BackendBroken, match="not configured as asked"):
        opened(faulty("wants an option"))


def test_init_without_a_handle_is_refused(faulty):
    with pytest.raises(BackendBroken, match=r"init\(0\) gave no device"):
        opened(faulty("no handle"))


def test_memory_that_is_not_there_and_memory_off_its_alignment_are_refused(faulty):
    _, device = opened(faulty())
    with pytest.raises(MemoryInsufficient, match="5000 bytes wanted, 1000 free"):
        device.alloc(5000)
    _, device = opened(faulty("misaligned"))
    with pytest.raises(BackendBroken, match="not aligned to 64"):
        device.alloc(10)


def test_a_late_error_is_raised_by_synchronize(faulty):
    _, device = opened(faulty("late error"))
    with pytest.raises(BackendBroken, match="synchronize: an earlier copy failed"):
        device.synchronize()


def test_an_error_without_a_reason_says_so(faulty, monkeypatch):
    library = load_native(faulty(), trial=False).library
    monkeypatch.setenv("FAULT", "no reason")
    with pytest.raises(BackendBroken, match=r"a call: no reason given \(status 9\)"):
        library.check(9, "a call")
