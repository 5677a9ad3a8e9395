"""Where anychip keeps what it knows of a machine."""

import builtins
from pathlib import Path

import anychip_sdk
from anychip_sdk.home import home
from support.sources import NEUTRAL, modules


def test_it_is_the_variable_or_the_users_folder(tmp_path):
    assert home({"ANYCHIP_HOME": str(tmp_path)}) == tmp_path
    assert home({"ANYCHIP_HOME": "~/here"}) == Path.home() / "here"
    assert home({}).name == "anychip"


def test_without_platformdirs_it_is_where_linux_keeps_state(tmp_path, monkeypatch):
    real = builtins.__import__

    def importing(name, *rest):
        if name == "platformdirs":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)
    assert home({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "anychip"
    assert home({}) == Path.home() / ".local" / "state" / "anychip"


def test_nobody_else_says_where_that_is():
    places = [path for path in modules(*NEUTRAL) if "def home(" in path.read_text("utf-8")]
    assert places == [Path(anychip_sdk.__file__).with_name("home.py")]
