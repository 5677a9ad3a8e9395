"""What is loaded for good costs no collection again."""

import gc
from types import SimpleNamespace

import pytest

from anychip.engine import worker
from anychip.engine.garbage import keep_for_good


@pytest.fixture(autouse=True)
def thawed():
    yield
    gc.unfreeze()


def test_a_full_collection_looks_at_nothing_that_was_there():
    before = len(gc.get_objects())
    keep_for_good()
    assert gc.get_freeze_count() > before // 2
    assert len(gc.get_objects()) < before // 100


def test_what_a_worker_has_loaded_is_kept_for_good_before_it_is_ready():
    frozen = []

    def send(message):
        frozen.append((type(message).__name__, gc.get_freeze_count() > 0))

    worker._load(SimpleNamespace(send=send), "support.stub_core:make", {})
    assert frozen[0] == ("Progress", False)
    assert frozen[-1] == ("Ready", True)
