"""Compile the native kernels when the package is built or installed. Knows hatchling's hook; knows no compiler."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: wheel builders for other machines, and whoever wants a wheel without a library, set this to 0
SWITCH = "ANYCHIP_CPU_NATIVE"


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Without a compiler the package is built without the library; its kernels in torch then do all the work."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        package = Path(self.root) / "src" / "anychip_cpu"
        native = _load(package / "native_build.py")
        if os.environ.get(SWITCH) == "0":
            native.LIBRARY.unlink(missing_ok=True)
            return
        try:
            native.build()
        except native.CannotBuildError as error:
            native.LIBRARY.unlink(missing_ok=True)
            self.app.display_warning(f"anychip-cpu: native kernels are not built: {error}")
            return
        build_data["artifacts"].append("src/anychip_cpu/*.so")
        build_data["pure_python"] = False
        # the library is called through C, so any Python does
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _load(path: Path) -> ModuleType:
    """The module by itself: the package's own imports need not be installed here."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
