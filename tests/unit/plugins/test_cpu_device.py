"""The CPU as a device: what a probe reads from a machine's files, memory, names. Knows no kernel."""

import pytest
import torch

import anychip_cpu
from anychip_cpu import host
from anychip_cpu.device import CpuDevice
from anychip_sdk import DeviceConfig, load_backend
from anychip_sdk.errors import DeviceAbsent, MemoryInsufficient

GIB = 1 << 30


@pytest.fixture
def backend():
    return load_backend("cpu", anychip_cpu, distribution="anychip-cpu", version="0")


@pytest.fixture
def machine(tmp_path):
    """A made-up machine with 16 GiB: (proc, cgroup), and a function that writes its files."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("proc/meminfo", f"MemTotal: {16 << 20} kB\nMemAvailable: {12 << 20} kB\nHugePages_Total: 0\n")
    write("proc/cpuinfo", "processor : 0\nmodel name : Fast 9000\nflags : fpu avx2 avx512f amx_bf16\n")
    return tmp_path / "proc", tmp_path / "cgroup", write


def test_the_probe_finds_one_device_that_fits_the_contract(backend):
    (device,) = backend.probe()
    assert device.name == "cpu:0"
    assert device.product
    assert set(device.attributes) == {"cores", "isa", "native_kernels"}
    assert int(device.attributes["cores"]) >= 1
    opened = backend.open(device, DeviceConfig(threads=torch.get_num_threads()))
    assert opened.capabilities == device.capabilities
    assert opened.versions() == device.versions
    opened.close()
    opened.close()


def test_memory_is_the_machines_without_a_cgroup(machine):
    proc, cgroup, _ = machine
    assert host.memory(proc, cgroup) == (16 * GIB, 12 * GIB)


@pytest.mark.parametrize("group", ["/a/b", "/"])
def test_a_cgroup_2_limit_on_the_way_up_counts(machine, group):
    proc, cgroup, write = machine
    write("proc/self/cgroup", f"0::{group}\n")
    write("cgroup/a/b/memory.max", "max\n")
    folder = "cgroup/a" if group != "/" else "cgroup"
    write(f"{folder}/memory.max", f"{4 * GIB}\n")
    write(f"{folder}/memory.current", f"{3 * GIB}\n")
    write(f"{folder}/memory.stat", f"anon 5\ninactive_file {GIB}\n")
    assert host.memory(proc, cgroup) == (4 * GIB, 2 * GIB)


def test_a_cgroup_1_limit_counts_and_an_unlimited_one_does_not(machine):
    proc, cgroup, write = machine
    write("proc/self/cgroup", "4:memory:/box\n3:cpu,cpuacct:/box\n")
    write("cgroup/memory/box/memory.limit_in_bytes", "9223372036854771712\n")
    assert host.memory(proc, cgroup) == (16 * GIB, 12 * GIB)
    write("cgroup/memory/box/memory.limit_in_bytes", f"{2 * GIB}\n")
    write("cgroup/memory/box/memory.usage_in_bytes", f"{3 * GIB}\n")
    assert host.memory(proc, cgroup) == (2 * GIB, 0)


def test_product_and_instruction_sets_come_from_cpuinfo(machine, tmp_path):
    proc, _, _ = machine
    assert host.product(proc) == "Fast 9000"
    assert host.instruction_sets(proc) == ("amx_bf16", "avx512f", "avx2")
    assert host.product(tmp_path / "nowhere") == "CPU"
    assert host.instruction_sets(tmp_path / "nowhere") == ()


def test_alloc_gives_zeroed_aligned_memory_and_counts_it():
    device = CpuDevice()
    buffer = device.alloc(10_000_000, alignment=1 << 16)
    assert buffer.data_ptr() % (1 << 16) == 0
    assert buffer.dtype == torch.uint8
    assert len(buffer) == 10_000_000
    assert not buffer.any()
    buffer.fill_(7)
    device.free(buffer)
    assert device.alloc(0).numel() == 0


def test_memory_that_was_given_away_is_not_free_though_untouched():
    device = CpuDevice()
    before = device.memory()
    buffer = device.alloc(before.bytes_free // 2)
    assert device.memory().bytes_free <= before.bytes_total - buffer.nbytes
    with pytest.raises(MemoryInsufficient, match="bytes wanted"):
        device.alloc(before.bytes_total)
    device.free(buffer)


def test_names():
    device = CpuDevice()
    assert device.resolve("cpu") == device.resolve("cpu:0") == torch.device("cpu")
    with pytest.raises(DeviceAbsent, match="present: cpu:0"):
        device.resolve("cpu:1")


def test_init_takes_the_threads_it_is_told():
    before = torch.get_num_threads()
    try:
        CpuDevice().init(DeviceConfig(threads=1))
        assert torch.get_num_threads() == 1
        CpuDevice().init(DeviceConfig())
        assert torch.get_num_threads() == host.cores()
    finally:
        torch.set_num_threads(before)
