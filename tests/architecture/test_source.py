"""What every source file keeps to: no vendor's name, small files, annotations, docstrings, a checked public surface."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.sources import NEUTRAL, PLUGINS, ROOT, modules, own_modules, short, source_modules, tree

MAX_LINES = 500

# Chips, their makers and their libraries. Compared with whole words and with the parts of identifiers, so that
# `to_cuda`, `CudaDevice` and "kunlun:0" are found and `input` and `descending` are not. `cpu` is no vendor's.
VENDOR_WORDS = frozenset(
    [
        "amd",
        "ascend",
        "baidu",
        "biren",
        "cambricon",
        "cann",
        "cublas",
        "cuda",
        "cudnn",
        "cutlass",
        "enflame",
        "gaudi",
        "habana",
        "hccl",
        "hip",
        "hpu",
        "huawei",
        "hygon",
        "iluvatar",
        "intel",
        "klx",
        "kunlun",
        "kunlunxin",
        "maca",
        "metax",
        "mlu",
        "mps",
        "musa",
        "nccl",
        "npu",
        "nvidia",
        "nvlink",
        "rocm",
        "sycl",
        "tpu",
        "triton",
        "xccl",
        "xmlir",
        "xpu",
        "xre",
    ]
)

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def words(text: str) -> set[str]:
    return {word.lower() for word in WORD.findall(text)}


def test_words_are_found_in_every_spelling_and_not_inside_others():
    found = words('to_cuda CudaDevice "kunlun:0" XPU torch.cuda_rng input_ids descending')
    assert {"cuda", "kunlun", "xpu"} <= found
    assert not {"npu", "ascend"} & found


def test_platform_and_sdk_name_no_vendor():
    named = [
        (short(path), word)
        for path in modules(*NEUTRAL)
        for word in sorted(words(path.read_text(encoding="utf-8")) & VENDOR_WORDS)
    ]
    assert named == []


def test_files_of_the_platform_and_the_sdk_name_no_vendor_either():
    assert [short(path) for path in modules(*NEUTRAL) if words(path.stem) & VENDOR_WORDS] == []


def test_torch_cuda_is_used_by_plugins_only():
    everything = [*modules(*NEUTRAL), *own_modules(), *modules(ROOT / "benchmarks", ROOT / "examples")]
    used = [
        f"{short(path)}:{node.lineno}"
        for path in everything
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and node.attr == "cuda"
        and isinstance(node.value, ast.Name)
        and node.value.id == "torch"
    ]
    assert used == []


def test_no_file_is_longer_than_the_limit():
    lengths = {short(path): path.read_text("utf-8").count("\n") for path in [*source_modules(), *own_modules()]}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_every_module_says_what_it_does():
    assert [short(path) for path in source_modules() if not ast.get_docstring(tree(path))] == []


def test_every_function_of_the_sources_is_annotated():
    missing = [
        f"{short(path)}:{function.lineno} {function.name}"
        for path in source_modules()
        for function in public_functions(tree(path))
        if not is_annotated(function)
    ]
    assert missing == []


def test_nothing_is_printed():
    printed = [
        f"{short(path)}:{node.lineno}"
        for path in source_modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printed == []


def test_public_names_are_listed_in_order_and_exist():
    problems = []
    for path in source_modules():
        module, listed = tree(path), exported(tree(path))
        if listed is None:
            continue
        if listed != sorted(set(listed), key=order):
            problems.append(f"{short(path)}: __all__ is not sorted, or holds a name twice")
        if lazy := sorted(set(listed) - top_level_names(module)):
            problems.append(f"{short(path)}: __all__ lists {', '.join(lazy)}, which nothing defines")
    assert problems == []


def test_what_other_modules_import_is_listed():
    existing = {dotted(path) for path in source_modules()}
    listed = {dotted(path): set(found) for path in source_modules() if (found := exported(tree(path))) is not None}
    missing = {
        f"{module}: __all__ lacks {name}, which {short(path)} imports"
        for path in source_modules()
        for module, name in imported_names(tree(path))
        if name not in listed.get(module, {name}) and f"{module}.{name}" not in existing
    }
    assert sorted(missing) == []


def test_the_sdk_lists_everything_that_it_defines():
    missing = []
    for path in modules(ROOT / "sdk/src"):
        listed = exported(tree(path))
        defined = {node.name for node in tree(path).body if isinstance(node, (Function, ast.ClassDef))}
        public = {name for name in defined if not name.startswith("_")}
        missing += [f"{short(path)}: {name}" for name in sorted(public - set(listed if listed is not None else public))]
    assert missing == []


def test_only_one_file_of_a_distribution_touches_entry_points():
    users = [
        short(path)
        for path in modules(*NEUTRAL)
        if any(
            {getattr(node, "attr", ""), getattr(node, "id", "")} & {"EntryPoint", "entry_points"}
            for node in ast.walk(tree(path))
        )
    ]
    assert users == ["platform/src/anychip/backends.py", "sdk/src/anychip_sdk/installed.py"]


def test_plugins_are_the_only_place_for_vendor_names():
    """The net is not empty: the plugins' own sources hold what it looks for."""
    found = {word for path in modules(PLUGINS) for word in words(path.read_text("utf-8")) & VENDOR_WORDS}
    assert {"cuda", "kunlun", "nvidia", "xpu"} <= found


def public_functions(module: ast.Module) -> Iterator[Function]:
    """Functions of the module and methods of its classes; what is nested in a function is nobody's interface."""
    for node in module.body:
        if isinstance(node, Function):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from (item for item in node.body if isinstance(item, Function))


def is_annotated(function: Function) -> bool:
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    if given and given[0].arg in ("self", "cls"):
        given = given[1:]
    rest = [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    return function.returns is not None and all(one.annotation is not None for one in (*given, *rest))


def top_level_names(module: ast.Module) -> set[str]:
    """What a module defines, imports (also for type checkers only) or builds on demand in __getattr__."""
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, (Function, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def imported_names(module: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            # a star takes what is listed
            yield from ((node.module, alias.name) for alias in node.names if alias.name != "*")


def dotted(path: Path) -> str:
    """The name under which a source file is imported."""
    parts = path.parts[path.parts.index("src") + 1 :]
    return ".".join(parts).removesuffix(".py").removesuffix(".__init__")


def exported(module: ast.Module) -> list[str] | None:
    for node in module.body:
        if isinstance(node, ast.Assign) and any(getattr(one, "id", "") == "__all__" for one in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest: as the linter sorts."""
    bare = name.strip("_")
    return (0 if bare.isupper() and len(bare) > 1 else 1 if bare[:1].isupper() else 2), name
