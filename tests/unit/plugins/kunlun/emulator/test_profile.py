"""The settings of a virtual host."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anychip_kunlun.emulator.profile import SETTINGS, Fault, Profile
from anychip_sdk.errors import UsageError

DOCUMENT = Path(__file__).parents[5] / "docs" / "kunlun-emulator.md"


def test_settings_are_read_from_a_comma_list() -> None:
    profile = Profile.parse("torch251, cards=2,memory=64MiB,missing-op=swiglu,missing-op=gelu,fault=714@9:rmsnorm")
    assert profile.generation == "torch251"
    assert (profile.cards, profile.memory_bytes) == (2, 64 << 20)
    assert profile.missing_ops == ("swiglu", "gelu")
    assert profile.fault == Fault(714, 9, "rmsnorm")


def test_no_settings_are_a_healthy_host() -> None:
    assert Profile.parse("") == Profile()


def test_all_settings_that_are_wrong_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        Profile.parse("cardz=2,memory=much,silent-hook=1,chip=H100,cards=0,fault=700,missing-op")
    for part in ("'cardz' is no setting", "memory=much", "silent-hook=1: takes no value", "chip=H100", "cards=0"):
        assert part in caught.value.message
    assert "fault=700: '700' is no CODE@LAUNCH" in caught.value.message
    assert "missing-op: needs a name" in caught.value.message
    assert caught.value.hint is not None
    assert "slow-compile" in caught.value.hint


def test_the_document_tells_of_every_setting_in_the_same_words() -> None:
    rows = re.findall(r"^\| `([\w-]+).*? \| (.+) \|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == list(SETTINGS)
    assert [name for name, text in rows if not text.startswith(SETTINGS[name].meaning)] == []
