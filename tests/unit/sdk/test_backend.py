"""Loading a backend's plugin: what fits, and one clear error for each way not to. Knows no entry point."""

import dataclasses

import pytest
import torch

from anychip_sdk import (
    BackendInfo,
    DeviceConfig,
    DeviceInfo,
    Finding,
    Fusion,
    PoolSpec,
    PreparedWeight,
    Program,
    Requirements,
    StateGroup,
    StateSpec,
    StateTensor,
    hookimpl,
    load_backend,
)
from anychip_sdk.errors import (
    BackendBroken,
    BackendIncompatible,
    DeviceAbsent,
    MemoryInsufficient,
    PreconditionFailed,
)
from anychip_sdk.ops import silu_mul
from anychip_sdk.testing import ReferenceDevice, reference_plugin

KV = StateGroup(StateSpec("kv", "paged", (StateTensor("k", (1, 4)), StateTensor("v", (1, 4)))), 1)
NOTHING = Program((), (), (), {}, {})


def load(plugin, name="acme", **options):
    return load_backend(name, plugin, distribution="acme-anychip", version="0.3", **options)


def plugin(**hooks):
    """The reference plugin with some hooks replaced: name -> function of the hook's arguments."""
    made = reference_plugin("acme")
    for name, function in hooks.items():
        setattr(made, name, hookimpl(function))
    return made


def info(**changes):
    return dataclasses.replace(BackendInfo("acme", "Acme", ">=1.0,<2"), **changes)


def device_info(**changes):
    return dataclasses.replace(DeviceInfo("acme:0", "A1", 100, 50), **changes)


def test_a_plugin_without_kernels_runs_on_the_references():
    backend = load(reference_plugin("acme"))
    assert backend.name == "acme"
    assert backend.hooks_implemented() == (
        "anychip_backend",
        "anychip_probe",
        "anychip_open_device",
        "anychip_register_ops",
    )
    assert backend.fusions == ()
    assert [kernel.provider for kernel in backend.ops.kernels("linear")] == ["reference"]
    device = backend.open(backend.find_device(None), DeviceConfig())
    assert device.is_open
    spec = PoolSpec((KV,), torch.float32, budget_bytes=4096, page_size=4)
    assert backend.create_kv_pool(spec, device).layout.pages == 32
    weight = torch.ones(2, 2)
    assert backend.prepare_weight("w", weight, "linear", device) == PreparedWeight(weight, 16)
    assert backend.compiles(NOTHING) is None
    assert backend.compile(NOTHING, None) is None


def test_a_misspelt_hook_is_an_error_with_the_nearest_name():
    with pytest.raises(BackendBroken, match=r"no hook 'anychip_prob'\. Did you mean 'anychip_probe'\?"):
        load(plugin(anychip_prob=lambda: ()))


def test_a_missing_required_hook_is_named():
    class Empty:
        @hookimpl
        def anychip_backend(self):
            return info()

    with pytest.raises(BackendBroken) as caught:
        load(Empty())
    text = str(caught.value)
    assert text.startswith("backend 'acme' (acme-anychip 0.3): ")
    for hook in ("anychip_probe", "anychip_open_device", "anychip_register_ops"):
        assert f"the required hook '{hook}' is missing" in text


def test_a_hook_with_an_unknown_argument_is_broken():
    with pytest.raises(BackendBroken, match="'chip'"):
        load(plugin(anychip_probe=lambda chip: ()))


def test_a_hook_that_raises_is_named_with_its_error():
    def explode():
        raise RuntimeError("no libacme.so")

    with pytest.raises(BackendBroken, match=r"anychip_backend: RuntimeError: no libacme\.so"):
        load(plugin(anychip_backend=explode))
    with pytest.raises(BackendBroken, match=r"anychip_register_ops: RuntimeError: no libacme\.so"):
        load(plugin(anychip_register_ops=lambda registry: explode()))
    backend = load(plugin(anychip_probe=explode))
    with pytest.raises(BackendBroken, match=r"anychip_probe: RuntimeError: no libacme\.so"):
        backend.probe()


def test_registering_an_unknown_op_is_broken():
    def register(registry):
        registry.register("liner", lambda: None, dtypes=(torch.float32,))

    with pytest.raises(BackendBroken, match="Did you mean 'linear'"):
        load(plugin(anychip_register_ops=register))


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"name": "other"}, BackendBroken, "the entry point is called 'acme', anychip_backend says 'other'"),
        ({"api": "soon"}, BackendBroken, "api range 'soon' is not a version specifier"),
        ({"api": ">=2"}, BackendIncompatible, "was written for API >=2; this is API 1.0"),
        ({"requirements": Requirements(torch=">=99")}, BackendIncompatible, "needs torch >=99"),
        ({"requirements": Requirements(driver="new")}, BackendBroken, "driver range 'new'"),
    ],
)
def test_what_a_backend_says_of_itself_is_checked(changes, error, text):
    with pytest.raises(error, match=text):
        load(plugin(anychip_backend=lambda: info(**changes)))


def test_an_answer_of_the_wrong_type_is_broken():
    with pytest.raises(BackendBroken, match="expected BackendInfo"):
        load(plugin(anychip_backend=lambda: {"name": "acme"}))
    backend = load(plugin(anychip_open_device=lambda device: "acme:0"))
    with pytest.raises(BackendBroken, match="anychip_open_device: returned 'acme:0', expected Device"):
        backend.open(device_info(), DeviceConfig())


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([device_info(memory_bytes_free=101)], r"acme:0: memory_bytes_free is 101, must be between 0 and .*\(100\)"),
        ([device_info(memory_bytes_free=-1)], "memory_bytes_free is -1"),
        ([device_info(memory_bytes_total=0, memory_bytes_free=0)], "memory_bytes_total is 0, must be above 0"),
        ([device_info(), device_info()], "acme:0 is listed twice"),
        (["acme:0"], "'acme:0' is not a DeviceInfo"),
    ],
)
def test_a_probe_that_breaks_the_contract_is_told(found, text):
    with pytest.raises(BackendBroken, match=text):
        load(plugin(anychip_probe=lambda: found)).probe()


def test_all_problems_of_a_probe_are_told_at_once():
    wrong = [device_info(memory_bytes_free=101), device_info(name="acme:1", memory_bytes_free=102)]
    with pytest.raises(BackendBroken, match=r"(?s)is 101.*is 102"):
        load(plugin(anychip_probe=lambda: wrong)).probe()


def test_an_absent_device_says_why():
    backend = load(
        plugin(anychip_probe=lambda: (), anychip_backend=lambda: info(absence="no driver; install acme-driver"))
    )
    with pytest.raises(DeviceAbsent, match="no device present: no driver; install acme-driver"):
        backend.find_device(None)


def test_devices_are_found_by_name_by_the_backends_name_and_by_a_claimed_alias():
    two = (device_info(), device_info(name="acme:1"))
    backend = load(
        plugin(anychip_probe=lambda: two, anychip_backend=lambda: info(claims={"device_aliases": "gpu chip"}))
    )
    assert [backend.find_device(name).name for name in (None, "acme", "acme:1", "gpu:1", "chip:0")] == [
        "acme:0",
        "acme:0",
        "acme:1",
        "acme:1",
        "acme:0",
    ]
    for absent in ("acme:2", "gpu:2", "tpu:0", "gpu:x"):
        with pytest.raises(DeviceAbsent, match="present: acme:0, acme:1"):
            backend.find_device(absent)


def test_a_device_that_fails_to_initialise_is_broken_but_our_own_errors_pass():
    class Failing(ReferenceDevice):
        def init(self, config):
            if config.threads == 1:
                raise MemoryInsufficient("none left")
            raise OSError("stuck")

    backend = load(plugin(anychip_open_device=lambda device: Failing("acme")))
    with pytest.raises(BackendBroken, match=r"Device\.init: OSError: stuck"):
        backend.open(device_info(), DeviceConfig())
    with pytest.raises(MemoryInsufficient, match="none left"):
        backend.open(device_info(), DeviceConfig(threads=1))


def test_fusions_are_checked():
    def pattern(gate, up):
        return silu_mul(gate, up)

    with pytest.raises(BackendBroken, match="'mine' has policy 'Every thing', expected a name in lower case"):
        load(plugin(anychip_fusions=lambda: [Fusion("Every thing", "mine", pattern, pattern)]))
    with pytest.raises(BackendBroken, match="is not a Fusion"):
        load(plugin(anychip_fusions=lambda: ["mha"]))
    good = (Fusion("silu_mul", "mine", pattern, pattern), Fusion("own_gate", "other", pattern, pattern))
    assert load(plugin(anychip_fusions=lambda: good)).fusions == good


def test_a_pool_with_another_page_size_is_broken():
    def create(spec, device):
        from anychip_sdk import SlabKVPool

        return SlabKVPool(dataclasses.replace(spec, page_size=spec.page_size * 2), device)

    backend = load(plugin(anychip_create_kv_pool=create))
    spec = PoolSpec((KV,), torch.float32, budget_bytes=4096, page_size=4)
    with pytest.raises(BackendBroken, match="the pool's page size is 8, 4 was asked for"):
        backend.create_kv_pool(spec, ReferenceDevice("acme"))


@pytest.mark.parametrize("answer", [["why", None], "why", [3], 5])
def test_an_answer_that_is_not_one_text_a_call_is_broken(answer):
    backend = load(plugin(anychip_compiles=lambda program: answer))
    with pytest.raises(BackendBroken, match="expected a text or None for each of 0 calls"):
        backend.compiles(NOTHING)


def test_loading_changes_nothing_in_another_backend():
    first = load(reference_plugin("acme"))
    second = load(
        plugin(anychip_register_ops=lambda registry: registry.register("add", torch.add, dtypes=(torch.float32,)))
    )
    assert len(first.ops.kernels("add")) == 1
    assert len(second.ops.kernels("add")) == 2


# --- emulators ---


def test_an_emulator_takes_the_plugin_s_place_where_it_is_asked_for():
    absent = plugin(anychip_probe=lambda: (), anychip_emulator=lambda: reference_plugin("acme"))
    assert load(absent).probe() == ()
    assert not load(absent).emulated
    emulated = load(absent, emulate=True)
    assert emulated.emulated
    assert [device.name for device in emulated.probe()] == ["acme:0"]


@pytest.mark.parametrize("hooks", [{}, {"anychip_emulator": lambda: None}])
def test_a_backend_without_an_emulator_is_refused_where_one_is_asked_for(hooks):
    with pytest.raises(PreconditionFailed, match=r"backend 'acme' \(acme-anychip 0.3\) has no emulator") as caught:
        load(plugin(**hooks), emulate=True)
    assert caught.value.exit_code == 4


def test_an_emulator_is_not_made_unless_it_is_asked_for():
    def never():
        pytest.fail("the emulator was made")

    assert "anychip_emulator" in load(plugin(anychip_emulator=never)).hooks_implemented()


@pytest.mark.parametrize(
    ("emulator", "problem"),
    [
        (reference_plugin("other"), "its emulator: the entry point is called 'acme', anychip_backend says 'other'"),
        (object(), "its emulator: the required hook 'anychip_backend' is missing"),
    ],
)
def test_an_emulator_that_breaks_the_contract_is_told_from_its_plugin(emulator, problem):
    with pytest.raises(BackendBroken, match=problem):
        load(plugin(anychip_emulator=lambda: emulator), emulate=True)


def test_an_emulator_hook_that_raises_is_named():
    with pytest.raises(BackendBroken, match="anychip_emulator: ZeroDivisionError"):
        load(plugin(anychip_emulator=lambda: 1 // 0), emulate=True)


def test_the_torch_range_that_counts_is_the_emulator_s():
    unfit = plugin(
        anychip_backend=lambda: info(requirements=Requirements(torch="<1")),
        anychip_emulator=lambda: reference_plugin("acme"),
    )
    with pytest.raises(BackendIncompatible):
        load(unfit)
    assert load(unfit, emulate=True).emulated


# --- diagnoses ---


def test_a_backend_s_findings_are_told_as_it_gives_them():
    one = Finding("driver", "ok", "5.0")
    assert load(plugin(anychip_diagnose=lambda: [one])).diagnose() == (one,)
    assert load(reference_plugin("acme")).diagnose() == ()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda: ["all well"], r"anychip_diagnose: returned \['all well'\], expected a sequence of Finding"),
        (lambda: 3, "anychip_diagnose: returned 3, expected a sequence of Finding"),
        (lambda: [Finding("driver", "bad", "x")], "anychip_diagnose: ValueError: finding 'driver': status is 'bad'"),
    ],
)
def test_a_diagnosis_that_is_none_is_the_plugin_s_error(answer, problem):
    with pytest.raises(BackendBroken, match=problem):
        load(plugin(anychip_diagnose=answer)).diagnose()
