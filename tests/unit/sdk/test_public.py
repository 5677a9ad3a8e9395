"""The SDK's public surface: exports, errors, ops as graph nodes. Knows no behaviour behind it."""

import importlib
import pkgutil

import pytest
import torch

import anychip_sdk
from anychip_sdk import CATALOGUE, errors
from anychip_sdk.ops import linear, rms_norm
from anychip_sdk.ops.base import EXACT, ROUNDED, Arg, Catalogue, Op, accumulated, cancelling, ulps

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(anychip_sdk.__path__, "anychip_sdk.")
    if "native" not in module.name and "conformance" not in module.name and "scaffold" not in module.name
)


@pytest.mark.parametrize("name", ["anychip_sdk", *MODULES])
def test_exports_are_sorted_and_there(name):
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])

    def isort_order(word):
        return (0 if word.isupper() else 1 if word[0].isupper() else 2, word)

    assert list(names) == sorted(names, key=isort_order)
    for exported in names:
        assert hasattr(module, exported)


def test_each_error_has_the_exit_code_of_the_tree():
    codes = {
        "AnychipError": 1,
        "UsageError": 2,
        "PreconditionFailed": 4,
        "NotReady": 5,
        "Regression": 6,
        "ConformanceFailed": 7,
        "IntegrityFailed": 8,
        "StateLocked": 9,
        "Inconclusive": 10,
    }
    for name, code in codes.items():
        assert getattr(errors, name).exit_code == code
    assert errors.RecipeInvalid(["a", "b"]).exit_code == 3
    for name in ("BackendBroken", "DeviceAbsent", "KernelMissing", "MemoryInsufficient", "PortTaken"):
        assert getattr(errors, name)("x").exit_code == 4


def test_an_error_prints_its_hint_on_a_second_line():
    assert str(errors.DeviceAbsent("no chip", hint="install the driver")) == "no chip\n  hint: install the driver"
    assert str(errors.RecipeInvalid(["one", "two"])) == "one\ntwo"


def test_every_op_has_a_schema_of_its_references_parameters_and_a_docstring():
    for name, op in CATALOGUE.items():
        assert op.name == name
        assert op.__doc__
        assert op.schema().startswith(f"{name}(")
        assert {part for part in op.composed_of} <= set(CATALOGUE)


def test_calling_an_op_runs_its_reference_and_tracing_records_a_node():
    class Model(torch.nn.Module):
        def forward(self, x, w):
            return rms_norm(linear(x, w, None), w[0], eps=1e-6)

    graph = torch.fx.Tracer().trace(Model())
    called = [node.target for node in graph.nodes if node.op == "call_function" and isinstance(node.target, Op)]
    assert called == [linear, rms_norm]
    x, w = torch.ones(2, 3), torch.ones(3, 3)
    assert torch.equal(linear(x, w, None), linear.reference(x, w, None))


def test_the_catalogue_refuses_a_name_twice_and_a_schema_that_is_not_the_references():
    def made(*args):
        return Op(reference, args=args, returns=(Arg("out"),), error=EXACT, version=1, composed_of=())

    def reference(x, y):
        return x + y

    catalogue = Catalogue()
    with pytest.raises(ValueError, match=r"schema names \['x'\], its reference \['x', 'y'\]"):
        catalogue.add(made(Arg("x")))
    catalogue.add(made(Arg("x"), Arg("y")))
    with pytest.raises(ValueError, match="is in the catalogue already"):
        catalogue.add(made(Arg("x"), Arg("y")))


def test_error_models_grow_with_what_they_allow():
    bf16 = torch.finfo(torch.bfloat16).eps
    assert EXACT.tolerance(torch.bfloat16) == (0.0, 0.0)
    assert ROUNDED.tolerance(torch.bfloat16) == (bf16, 0.0)
    assert ulps(4).tolerance(torch.bfloat16)[0] == 4 * bf16
    assert ulps(4).tolerance(torch.int64) == (0.0, 0.0)
    shallow, deep = (accumulated("in").tolerance(torch.float32, depth)[1] for depth in (4, 4096))
    assert shallow < deep
    assert cancelling(2).tolerance(torch.float32)[1] > 0
