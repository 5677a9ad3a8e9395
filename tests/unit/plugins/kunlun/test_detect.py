"""What is missing or wrong is told by name, and nothing is used before it is whole."""

import pytest

from anychip_kunlun import detect
from anychip_kunlun.chips import chip_of
from anychip_sdk.errors import DeviceAbsent


def parts(rig):
    return {problem.part for problem in detect.problems(rig.stack)}


def test_a_whole_stack_has_no_problem(rig):
    assert parts(rig) == set()
    assert rig.backend.info.absence == ""


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"nodes": "none"}, "device nodes"),
        ({"nodes": "no-control"}, "device nodes"),
        ({"missing_modules": ("torch_xmlir",)}, "torch_xmlir"),
        ({"hook_applied": False}, "torch"),
        ({"visible_mismatch": True}, "environment"),
    ],
)
def test_a_missing_part_leaves_no_device_and_is_named(make_rig, settings, part):
    rig = make_rig(**settings)
    assert part in parts(rig)
    assert rig.backend.probe() == ()
    with pytest.raises(DeviceAbsent, match=part):
        rig.backend.find_device(None)


@pytest.mark.parametrize("name", detect.HARMFUL)
def test_variables_that_break_the_stack_are_refused(rig, name):
    rig.stack.environ[name] = "1"
    assert rig.backend.probe() == ()
    hints = {problem.hint: problem.what for problem in detect.problems(rig.stack)}
    assert hints[f"unset {name}"].startswith(f"{name}=1: ")


def test_without_the_fused_ops_the_card_is_there_and_ops_fall_back(make_rig):
    rig = make_rig(missing_modules=("kunlun_ops",))
    assert parts(rig) == {"kunlun_ops"}
    assert [device.name for device in rig.backend.probe()] == ["kunlun:0"]


def test_the_fused_ops_may_have_their_old_name(make_rig):
    rig = make_rig(old_ops_name=True)
    assert parts(rig) == set()
    assert rig.plugin._vendor.has("swiglu")


@pytest.mark.parametrize("smi", ["plain", "short", "no-machine-readable", "no-runtime", "cuda-runtime", "missing"])
def test_the_probe_survives_every_variant_of_the_tool(make_rig, smi):
    [device] = make_rig(smi=smi).backend.probe()
    assert device.memory_bytes_total == 64 << 20
    assert device.versions["driver"] == "5.0.21.26"
    assert device.attributes["kernels"] == "kunlun_ops"


def test_the_process_sees_the_cards_that_the_variables_leave_in_their_order(make_rig):
    rig = make_rig(cards=3)
    for name in detect.VISIBLE:
        rig.stack.environ[name] = "2,0"
    assert [(one.name, one.attributes["card"]) for one in rig.backend.probe()] == [
        ("kunlun:0", "xpu2"),
        ("kunlun:1", "xpu0"),
    ]


def test_a_worker_gets_both_variables_where_the_user_set_one(rig):
    rig.stack.environ["XPU_VISIBLE_DEVICES"] = "0"
    environment = rig.plugin.anychip_backend().environment
    assert environment["CUDA_VISIBLE_DEVICES"] == environment["XPU_VISIBLE_DEVICES"] == "0"


def test_older_chips_are_recognised_and_have_no_kernels(make_rig):
    [device] = make_rig(chip="R300").backend.probe()
    assert device.product.startswith("R300")
    assert device.attributes["kernels"].startswith("none: kunlun_ops runs on the P800 only")


@pytest.mark.parametrize(
    ("product", "name"), [("P800 OAM", "P800"), ("R200-8FS", "R200-8F"), ("R480-X8", "R480"), ("A100", None)]
)
def test_products_are_found_by_how_they_begin(product, name):
    chip = chip_of(product)
    assert (chip and chip.name) == name
