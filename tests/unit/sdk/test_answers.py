"""Answers of hooks that break the contract: each is told with its field, and belongs to the plugin that gave it."""

import dataclasses
import threading

import pytest
import torch

from anychip_sdk import (
    BackendInfo,
    Capabilities,
    DeviceConfig,
    DeviceInfo,
    PoolSpec,
    PreparedWeight,
    Program,
    hookimpl,
    load_backend,
)
from anychip_sdk import backend as backend_module
from anychip_sdk.errors import BackendBroken
from anychip_sdk.kv import SlabKVPool
from anychip_sdk.speeds import KernelSpeed, Speeds
from anychip_sdk.testing import ReferenceDevice, reference_plugin

NAN, INFINITY = float("nan"), float("inf")
NOTHING = Program((), (), (), {}, {})


class Panic(BaseException):
    pass


class Spiteful(list):
    """A sequence that can't be looked at."""

    def __len__(self):
        raise Panic

    __iter__ = __getitem__ = __repr__ = __len__


def load(plugin):
    return load_backend("acme", plugin, distribution="acme-anychip", version="0.3")


def plugin(**hooks):
    made = reference_plugin("acme")
    for name, function in hooks.items():
        setattr(made, name, hookimpl(function))
    return made


def device(**changes):
    return dataclasses.replace(DeviceInfo("acme:0", "A1", 100, 50), **changes)


def info(**changes):
    return dataclasses.replace(BackendInfo("acme", "Acme", ">=1.0,<2"), **changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"memory_bytes_free": None}, "acme:0: memory_bytes_free is None, must be between 0 and"),
        ({"memory_bytes_total": None}, "memory_bytes_total is None, must be above 0"),
        ({"memory_bytes_total": 10**400}, "memory_bytes_total is 1000"),
        ({"memory_bytes_total": NAN}, "memory_bytes_total is nan"),
        ({"memory_bytes_total": True}, "memory_bytes_total is True"),
        ({"name": None}, "a device: name is None, expected a text"),
        ({"name": ""}, "a device: name is empty"),
        ({"product": 5}, "product is 5, expected a text"),
        ({"capabilities": None}, "capabilities is None, expected Capabilities"),
        ({"capabilities": Capabilities(dtypes=())}, r"dtypes is \(\), expected a tuple of torch dtypes"),
        ({"capabilities": Capabilities(dtypes=("float32",))}, "expected a tuple of torch dtypes"),
        ({"capabilities": Capabilities(page_size=-16)}, "page_size is -16, expected a whole number above 0"),
        ({"capabilities": Capabilities(prefill_tokens=2.5)}, "prefill_tokens is 2.5"),
        ({"capabilities": Capabilities(async_streams="no")}, "async_streams is 'no', expected True or False"),
        ({"versions": None}, "versions is None, expected texts by name"),
        ({"versions": {"driver": 5}}, "expected texts by name"),
        ({"attributes": [1]}, r"attributes is \[1\]"),
        ({"speeds": 5}, "speeds is 5, expected Speeds"),
        ({"speeds": Speeds("x", {"linear": None})}, "None is not a KernelSpeed"),
        ({"speeds": Speeds("x", others=KernelSpeed(call_s=NAN))}, "speeds: nan is no rate and no time"),
        ({"speeds": Speeds("x", step_s=-1.0)}, r"speeds: -1\.0 is no rate"),
    ],
)
def test_a_device_with_a_field_that_is_none_is_the_plugin_s_fault(changes, text):
    with pytest.raises(BackendBroken, match=rf"backend 'acme' \(acme-anychip 0\.3\): anychip_probe: .*{text}"):
        load(plugin(anychip_probe=lambda: [device(**changes)])).probe()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda: None, "returned None, expected Sequence of DeviceInfo"),
        (lambda: "acme:0", "returned 'acme:0', expected Sequence"),
        (lambda: {"acme:0": device()}, "expected Sequence"),
        (lambda: (one for one in ()), "returned <generator object"),
        (lambda: [device(name=f"acme:{i}") for i in range(5000)], "returned 5000 devices, expected at most 4096"),
        (lambda: Spiteful([1]), "Panic"),
    ],
)
def test_a_probe_that_lists_no_devices_is_the_plugin_s_fault(answer, text):
    with pytest.raises(BackendBroken, match=f"anychip_probe: .*{text}"):
        load(plugin(anychip_probe=answer)).probe()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": None}, "name is None, expected a text"),
        ({"api": None}, "api is None"),
        ({"requirements": {"torch": ">=2"}}, "expected Requirements"),
        ({"claims": None}, "claims is None"),
        ({"environment": {"OMP_NUM_THREADS": 4}}, "environment is .* expected texts by name"),
        ({"absence": None}, "absence is None"),
        ({"on_every_machine": None}, "on_every_machine is None, expected True or False"),
    ],
)
def test_what_a_backend_says_of_itself_has_types(changes, text):
    with pytest.raises(BackendBroken, match=text):
        load(plugin(anychip_backend=lambda: info(**changes)))


async def asynchronous(registry=None):
    return ()


def generator(registry=None):
    yield ()


async def both(registry=None):
    yield ()


@pytest.mark.parametrize("function", [asynchronous, generator, both])
@pytest.mark.parametrize("hook", ["anychip_register_ops", "anychip_fusions", "anychip_probe", "anychip_diagnose"])
def test_an_async_function_or_a_generator_is_no_hook(hook, function):
    made = plugin()
    if hook == "anychip_register_ops":
        setattr(made, hook, hookimpl(lambda registry, inner=function: inner(registry)))
        with pytest.raises(BackendBroken, match=r"anychip_register_ops: returned <.* object .*, expected None"):
            load(made)
    plain = {"asynchronous": "async def", "generator": "def", "both": "async def"}[function.__name__]
    namespace = {}
    body = "yield" if function is not asynchronous else "return"
    exec(f"{plain} hook({'registry' if 'ops' in hook else ''}): {body} ()", namespace)
    setattr(made, hook, hookimpl(namespace["hook"]))
    with pytest.raises(BackendBroken, match=f"'{hook}' is (an async function|a generator); hooks are plain"):
        load(made)


def test_a_hook_that_wraps_others_is_refused():
    made = plugin()

    def wrapper():
        return (yield)

    made.anychip_fusions = hookimpl(wrapper=True)(wrapper)
    with pytest.raises(BackendBroken, match="'anychip_fusions' wraps other hooks"):
        load(made)


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, Panic])
@pytest.mark.parametrize(
    "hook",
    ["anychip_backend", "anychip_register_ops", "anychip_fusions", "anychip_probe", "anychip_open_device",
     "anychip_create_kv_pool", "anychip_prepare_weight", "anychip_compiles", "anychip_compile", "anychip_diagnose"],
)  # fmt: skip
def test_every_hook_that_raises_anything_is_named(hook, raised):
    def explode():
        raise raised("no libacme.so")

    def use(backend):
        chip = ReferenceDevice("acme")
        {
            "anychip_probe": backend.probe,
            "anychip_open_device": lambda: backend.open(device(), DeviceConfig()),
            "anychip_create_kv_pool": lambda: backend.create_kv_pool(PoolSpec((), torch.float32, 64, 4), chip),
            "anychip_prepare_weight": lambda: backend.prepare_weight("w", torch.ones(1), "linear", chip),
            "anychip_compiles": lambda: backend.compiles(NOTHING),
            "anychip_compile": lambda: backend.compile(NOTHING, None),
            "anychip_diagnose": backend.diagnose,
        }[hook]()

    text = rf"backend 'acme' \(acme-anychip 0\.3\): {hook}: {raised.__name__}: no libacme\.so"
    with pytest.raises(BackendBroken, match=text):
        use(load(plugin(**{hook: explode})))


def test_a_probe_that_hangs_is_given_up(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(backend_module, "PROBE_SECONDS", 0.05)
    with pytest.raises(BackendBroken, match=r"anychip_probe: TimeoutError: no answer within 0\.05 s"):
        load(plugin(anychip_probe=lambda: release.wait(60))).probe()
    release.set()


def test_a_device_whose_memory_is_no_number_is_the_plugin_s_fault():
    class Odd(ReferenceDevice):
        def memory(self):
            return None

    with pytest.raises(BackendBroken, match=r"Device\.memory: AttributeError"):
        load(plugin(anychip_open_device=lambda device: Odd("acme"))).open(device(), DeviceConfig())


def test_a_pool_that_can_not_be_asked_is_the_plugin_s_fault():
    class Odd(SlabKVPool):
        @property
        def layout(self):
            raise Panic

    spec = PoolSpec((), torch.float32, 64, 4, pages_max=1)

    def create(spec, device):
        return Odd(spec, device)

    backend = load(plugin(anychip_create_kv_pool=create))
    with pytest.raises(BackendBroken, match="anychip_create_kv_pool: Panic"):
        backend.create_kv_pool(spec, ReferenceDevice("acme"))


@pytest.mark.parametrize("answer", [None, 5, PreparedWeight(None, None), PreparedWeight(None, -1)])
def test_a_prepared_weight_says_how_many_bytes_it_takes(answer):
    made = plugin(anychip_prepare_weight=lambda: [answer])
    with pytest.raises(BackendBroken, match="anychip_prepare_weight: "):
        load(made).prepare_weight("w", torch.ones(1), "linear", ReferenceDevice("acme"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"function": None}, "function is None, expected a callable"),
        ({"dtypes": "float32"}, "dtypes is 'float32', expected torch dtypes"),
        ({"dtypes": ("float32",)}, "expected torch dtypes"),
        ({"requires": {"head_dim": 64}}, "expected a Need for each fact"),
        ({"prepare": len}, "expected Prepare or None"),
    ],
)
def test_a_kernel_of_wrong_types_is_refused_where_it_is_registered(arguments, text):
    given = {"function": torch.add, "dtypes": (torch.float32,), **arguments}

    def register(registry):
        registry.register("add", **given)

    with pytest.raises(BackendBroken, match=f"anychip_register_ops: TypeError: op 'add': .*{text}"):
        load(plugin(anychip_register_ops=register))
