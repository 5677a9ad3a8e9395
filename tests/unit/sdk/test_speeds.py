"""Times follow from work and rates. Knows numbers."""

from anychip_sdk.speeds import MEMORY_NEAR, KernelSpeed, Speeds, Work, kernel_name

READING = KernelSpeed(weight_bytes_per_s=10.0, flops_per_s=100.0, exposed=0.5)


def test_the_longer_of_reading_and_multiplying_hides_a_share_of_the_shorter():
    assert READING.seconds(Work(weight_bytes=40, flops=200)) == 4.0 + 0.5 * 2.0
    assert READING.seconds(Work(weight_bytes=10, flops=800)) == 8.0 + 0.5 * 1.0


def test_calls_activations_and_attention_add_up():
    speed = KernelSpeed(call_s=2.0, kv_bytes_per_s=4.0, attention_flops_per_s=5.0, moved_bytes_per_s=8.0)
    work = Work(calls=3, kv_bytes=4, attention_flops=10, moved_bytes=16)
    assert (speed.calls_s(work), speed.attention_s(work), speed.products_s(work)) == (8.0, 3.0, 0.0)
    assert speed.seconds(work) == 11.0


def test_work_without_a_rate_takes_no_time():
    assert KernelSpeed(call_s=1.0).seconds(Work(calls=1, weight_bytes=10**9, moved_bytes=10**9)) == 1.0


def test_a_kernel_without_figures_of_its_own_has_those_of_the_others():
    name = kernel_name("linear", "acme", "tiled", "int8")
    assert name == "linear acme/tiled int8"
    assert Speeds("sheet", {name: READING}).of(name) is READING
    assert Speeds("sheet", {name: READING}).of("add acme/add int8") is None
    assert Speeds("sheet", others=READING).of(name) is READING


def test_speeds_hold_while_memory_is_about_as_fast():
    speeds = Speeds("measured", memory_bytes_per_s=20e9)
    assert speeds.told == "measured, while memory copied 20 GB/s"
    assert speeds.hold_at(20e9 * (1 + 0.9 * MEMORY_NEAR))
    assert not speeds.hold_at(20e9 * (1 - 1.1 * MEMORY_NEAR))
    assert Speeds("sheet").hold_at(1.0)
    assert Speeds("sheet").told == "sheet"
