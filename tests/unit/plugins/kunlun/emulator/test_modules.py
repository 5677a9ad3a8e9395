"""The vendor's modules on a virtual host, the tools and the versions that they report."""

from __future__ import annotations

import inspect
import sys
import time
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch

from anychip_kunlun.stack import Stack


def test_nothing_is_put_on_the_path_or_among_the_modules(host: Stack) -> None:
    before = (list(sys.path), list(sys.meta_path), set(sys.modules))
    for name in ("torch_xmlir", "kunlun_ops", "xspeedgate_ops", "cocopod"):
        assert host.load(name).__name__ == name
    assert (list(sys.path), list(sys.meta_path), set(sys.modules)) == before


def test_the_hook_module_knows_the_chip_by_its_own_name(host: Stack) -> None:
    hook = host.load("torch_xmlir")
    assert isinstance(hook.__version__, OrderedDict)
    properties = hook.xpu.get_device_properties(0)
    assert (properties.name, properties.total_memory, properties.multi_processor_count) == ("KL3", 64, 12)
    assert hook.xpu.set_device(0) == "xla:0"
    assert host.accelerator.get_device_name(0) == "GPU"
    assert host.accelerator.get_device_capability(0) == (8, 6)


def test_the_two_setters_share_one_current_device(open_host) -> None:
    stack = open_host(cards=2)
    stack.load("torch_xmlir").xpu.set_device(1)
    assert stack.accelerator.current_device() == 1


def test_generations_differ_in_names_signatures_and_versions(open_host) -> None:
    old, new = open_host(generation="torch251"), open_host()
    old_ops, new_ops = old.load("kunlun_ops"), new.load("kunlun_ops")
    assert "out" in inspect.signature(old_ops.rmsnorm).parameters
    assert "output" in inspect.signature(new_ops.rmsnorm).parameters
    assert hasattr(old_ops, "paged_attention")
    assert not hasattr(old_ops, "speculative_attention")
    assert hasattr(new_ops, "speculative_attention")
    assert not hasattr(new_ops, "paged_attention")
    assert (old.version("torch"), new.version("torch")) == ("2.5.1+cu118", "2.9.0+cu128")
    assert (old.version("xspeedgate-ops"), new.version("xspeedgate_ops")) == ("1.1.0", "1.5.0")


def test_ops_show_signatures_without_self(host: Stack) -> None:
    names = tuple(inspect.signature(host.load("kunlun_ops").reshape_and_cache_flash).parameters)
    assert names == ("key", "value", "k_cache", "v_cache", "slot_mapping", "BLHD_LAYOUT")


def test_a_missing_op_is_missing_and_nothing_else(open_host) -> None:
    ops = open_host(missing_ops=("swiglu",)).load("kunlun_ops")
    assert not hasattr(ops, "swiglu")
    assert hasattr(ops, "rmsnorm")


def test_chips_without_kernels_refuse_every_op(open_host) -> None:
    with pytest.raises(ValueError, match=r"swiglu failed \(no kernel for R300\)"):
        open_host(chip="R300").load("kunlun_ops").swiglu(torch.ones(2, 8), torch.ones(2, 4))


def test_a_missing_module_is_an_import_error(open_host) -> None:
    stack = open_host(missing_modules=("kunlun_ops",))
    assert not stack.has_module("kunlun_ops")
    assert stack.version("kunlun_ops") is None
    with pytest.raises(ModuleNotFoundError, match="No module named 'kunlun_ops'"):
        stack.load("kunlun_ops")


def test_the_ops_may_have_their_older_name(open_host) -> None:
    stack = open_host(old_ops_name=True)
    assert not stack.has_module("kunlun_ops")
    assert hasattr(stack.load("xtorch_ops"), "rmsnorm")


def test_the_gate_ops_appear_in_torchs_namespace_when_they_are_imported(open_host) -> None:
    stack = open_host()
    assert not hasattr(stack.load("torch.ops"), "xspeedgate_ops")
    stack.load("xspeedgate_ops")
    x = torch.ones(3)
    assert stack.load("torch.ops").xspeedgate_ops.weak_ref_tensor(x).data_ptr() == x.data_ptr()
    old = open_host(generation="torch251")
    old.load("xspeedgate_ops")
    assert not hasattr(old.load("torch.ops").xspeedgate_ops, "weak_ref_tensor")


def test_the_table_of_kernels_proves_the_hook(open_host) -> None:
    assert "xmlir" in open_host().dispatch_dump("aten::add.Tensor")
    assert "xmlir" not in open_host(hook_applied=False).dispatch_dump("aten::add.Tensor")
    disabled = open_host()
    disabled.environ["DISABLE_XPYTORCH"] = "1"
    assert "xmlir" not in disabled.dispatch_dump("aten::add.Tensor")


def test_fp16_products_are_wrong_beyond_a_number_of_columns(open_host) -> None:
    stack = open_host(linear_columns_right=8)
    x, w = torch.eye(4, dtype=torch.float16), torch.arange(40, dtype=torch.float16).view(10, 4)
    right = torch.nn.functional.linear(x, w)
    product = stack.linear(x, w, None)
    assert torch.equal(product[:, :8], right[:, :8])
    assert not torch.equal(product[:, 8:], right[:, 8:])
    assert torch.equal(stack.linear(x, w[:8], None), right[:, :8])
    assert torch.equal(stack.linear(x.float(), w.float(), None), right.float())


def test_bf16_products_take_longer_where_they_do(open_host, monkeypatch) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, perf_counter=time.perf_counter)  # other threads may sleep meanwhile
    monkeypatch.setattr("anychip_kunlun.emulator.linear.time", clock)
    stack, x = open_host(bf16_slowdown=3.0), torch.ones(64, 64)
    stack.linear(x.half(), x.half(), None)
    assert not slept
    stack.linear(x.bfloat16(), x.bfloat16(), None)
    assert len(slept) == 1
    assert slept[0] > 0


def test_collectives_fail_without_address_windows_unless_the_check_is_off(open_host, tmp_path) -> None:
    stack = open_host(has_address_windows=False)
    dist = stack.load("torch.distributed")
    dist.init_process_group("nccl", init_method=f"file://{tmp_path / 'store'}", world_size=1, rank=0)
    try:
        assert dist.get_backend() == "nccl"
        x = torch.ones(3)
        with pytest.raises(RuntimeError, match="addr_window not properly set"):
            dist.all_reduce(x)
        stack.environ["BKCL_CHECK_AW"] = "0"
        dist.all_reduce(x)
        gathered = torch.zeros(3)
        dist.all_gather_into_tensor(gathered, x)
        assert torch.equal(gathered, torch.ones(3))
    finally:
        dist.destroy_process_group()
    with pytest.raises(ValueError, match="'nccl' only"):
        dist.init_process_group("gloo")
