import shutil

import pytest
import torch

from anychip_sdk.device import DeviceConfig
from anychip_sdk.native.loader import load_native_backend
from support.native_libraries import build_example, build_faulty


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def example_library(tmp_path_factory):
    return build_example(tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="session")
def example(example_library):
    return load_native_backend(example_library)


@pytest.fixture
def device(example):
    opened = example.open(example.find_device(None), DeviceConfig())
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def faulty_library(tmp_path_factory):
    return build_faulty(tmp_path_factory.mktemp("faulty"))


@pytest.fixture
def faulty(faulty_library, tmp_path, monkeypatch):
    """A function: the faulty library with that fault, as a file that was never loaded before."""

    def made(fault=""):
        monkeypatch.setenv("FAULT", fault)
        target = tmp_path / f"lib{fault.replace(' ', '_')}{len(list(tmp_path.iterdir()))}.so"
        shutil.copy(faulty_library, target)
        return target

    return made
