"""The installed backends: found without importing, loaded with clear errors, chosen by presence."""

import logging
import sys
from pathlib import Path

import pytest

from anychip import backends
from anychip_sdk import hooks
from anychip_sdk.errors import BackendBroken, BackendIncompatible, BackendNotFound, DeviceAbsent, PreconditionFailed
from support import vendor_plugins as vendor


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder that is the only one on the path with backends in it."""
    folder = tmp_path / "site"
    folder.mkdir()
    forget_plugins()  # another test's, of the same name
    with vendor.alone_on_path(folder, monkeypatch):
        yield folder
    forget_plugins()


def forget_plugins():
    for module in ("acme_chip", "bolt_chip", "cpu_chip"):
        sys.modules.pop(module, None)


def absent(name: str = "acme") -> str:
    """The example without its device."""
    source = vendor.changed("return [DeviceInfo(", "return [] or [] and [DeviceInfo(")
    return source.replace('name="acme", vendor="Acme",', f'name="{name}", vendor="Acme", absence="no slot holds one",')


def named(name: str) -> str:
    return vendor.changed('name="acme"', f'name="{name}"')


def host(name: str = "cpu") -> str:
    """A backend whose device every machine has."""
    source = named(name)
    assert source.count(f'name="{name}", ') == 1
    return source.replace(f'name="{name}", ', f'name="{name}", on_every_machine=True, ')


def test_the_example_is_under_sixty_lines():
    assert len(vendor.example().splitlines()) < 60


def test_the_group_is_the_one_of_the_sdk():
    assert backends.GROUP == hooks.ENTRY_POINT_GROUP


def test_metadata_is_read_without_importing(site):
    vendor.install(site, vendor.raising_import())
    (found,) = backends.installed()
    assert found == backends.InstalledBackend("acme", "acme-anychip", "0.1.0", "acme_chip")
    assert "acme_chip" not in sys.modules


def test_the_example_loads_and_finds_its_device(site):
    vendor.install(site)
    backend = backends.load("acme")
    assert (backend.name, backend.distribution, backend.version) == ("acme", "acme-anychip", "0.1.0")
    assert backend.find_device(None).product == "Acme One"
    assert backend.hooks_implemented() == hooks.REQUIRED


def test_an_unknown_backend_names_the_installed_the_nearest_and_the_command(site):
    vendor.install(site)
    with pytest.raises(BackendNotFound) as caught:
        backends.load("acne")
    assert str(caught.value) == (
        "no backend 'acne' is installed; installed: acme. Did you mean 'acme'?\n"
        "  hint: pip install anychip-acne, or the package that the chip's vendor names"
    )


def test_a_misspelt_hook_names_the_nearest(site):
    vendor.install(site, vendor.misspelt_hook())
    with pytest.raises(BackendBroken) as caught:
        backends.load("acme")
    assert caught.value.message == (
        "backend 'acme' (acme-anychip 0.1.0): there is no hook 'anychip_register_opps'. "
        "Did you mean 'anychip_register_ops'?; the required hook 'anychip_register_ops' is missing"
    )


def test_a_raising_import_shows_plugin_version_and_traceback(site):
    vendor.install(site, vendor.raising_import())
    with pytest.raises(BackendBroken) as caught:
        backends.load("acme")
    first, _, rest = caught.value.message.partition("\n")
    assert first == (
        "backend 'acme' (acme-anychip 0.1.0): importing acme_chip raised "
        "OSError: libacme.so.3: cannot open shared object file"
    )
    assert "acme_chip.py" in rest
    assert isinstance(caught.value.__cause__, OSError)


def test_a_plugin_that_exits_while_imported_is_broken(site):
    vendor.install(site, "raise SystemExit(3)\n")
    with pytest.raises(BackendBroken, match="SystemExit"):
        backends.load("acme")


BROKEN = {
    "an import that raises a BaseException": "class Panic(BaseException): pass\nraise Panic('at the disco')\n",
    "an import that interrupts": "raise KeyboardInterrupt\n",
    "an import that says a device is absent": (
        "from anychip_sdk.errors import DeviceAbsent\nraise DeviceAbsent('not here')\n"
    ),
    "no Python": "this is no Python",
    "nothing": "",
}


@pytest.mark.parametrize("source", [*BROKEN.values(), None], ids=[*BROKEN, "a probe without memory"])
def test_a_broken_plugin_is_named_and_the_rest_works(site, caplog, source):
    if source is None:
        source = vendor.changed("memory.bytes_total, memory.bytes_free,", "memory.bytes_total, None,")
    vendor.install(site, source)
    vendor.install(site, host(), name="cpu", module="cpu_chip", distribution="anychip-cpu")
    with caplog.at_level(logging.WARNING, logger="anychip.backends"):
        assert backends.choose("auto").backend.name == "cpu"
    assert "backend 'acme' (acme-anychip 0.1.0) is left out: backend 'acme' (acme-anychip 0.1.0): " in caplog.text
    assert backends.load("cpu").probe()
    (broken,) = (one for one in backends.probe_all() if one.error is not None)
    assert isinstance(broken.error, BackendBroken)


def test_two_entries_with_one_name_in_one_distribution_are_both_told(site):
    vendor.install(site)
    entries = next(site.glob("*.dist-info")) / "entry_points.txt"
    entries.write_text("[anychip.backends]\nacme = acme_chip\nacme = acme_other\n")
    assert backends.installed()[0].duplicates == ("acme-anychip 0.1.0 (acme_other)",)
    with pytest.raises(BackendBroken) as caught:
        backends.load("acme")
    assert str(caught.value) == (
        "backend 'acme' is offered by several entry points of one distribution: "
        "acme-anychip 0.1.0, acme-anychip 0.1.0 (acme_other)\n"
        "  hint: each entry point needs a name of its own: have acme-anychip repaired, or pip uninstall it"
    )


@pytest.mark.parametrize("text", ["[anychip.backends]\nno equals sign\n", "\x00", "[anychip.backends\nacme = a\n"])
def test_metadata_that_can_not_be_read_hides_no_other_backend(site, text):
    vendor.install(site, named("bolt"), name="bolt", module="bolt_chip", distribution="bolt-anychip")
    (next(site.glob("bolt*.dist-info")) / "entry_points.txt").write_text(text)
    vendor.install(site)
    assert [one.name for one in backends.installed()] == ["acme"]
    assert backends.load("acme").probe()


def test_two_distributions_with_one_name_are_both_named(site):
    vendor.install(site)
    vendor.install(site, named("acme"), module="bolt_chip", distribution="bolt-anychip", version="2.0")
    with pytest.raises(BackendBroken) as caught:
        backends.load("acme")
    assert str(caught.value) == (
        "backend 'acme' is offered by several installed distributions: acme-anychip 0.1.0, bolt-anychip 2.0\n"
        "  hint: pip uninstall bolt-anychip (or the other way round), or set ANYCHIP_PLUGINS=acme-anychip"
    )


def test_the_allow_list_settles_a_name_by_distribution(site, monkeypatch):
    vendor.install(site)
    vendor.install(site, named("acme"), module="bolt_chip", distribution="bolt-anychip", version="2.0")
    monkeypatch.setenv("ANYCHIP_PLUGINS", "bolt.anychip")
    assert backends.load("acme").distribution == "bolt-anychip"


def test_a_stale_second_metadata_of_one_distribution_does_not_count(site):
    vendor.install(site)
    vendor.install(site, version="0.0.9")
    assert len(backends.installed()) == 1
    assert backends.installed()[0].duplicates == ()


def test_an_api_range_that_does_not_fit(site):
    vendor.install(site, vendor.api_that_does_not_fit())
    with pytest.raises(BackendIncompatible) as caught:
        backends.load("acme")
    assert caught.value.message == ("backend 'acme' (acme-anychip 0.1.0) was written for API >=2.0,<3; this is API 1.0")


def test_a_probe_with_more_free_than_total(site):
    vendor.install(site, vendor.free_above_total())
    with pytest.raises(BackendBroken) as caught:
        backends.load("acme").probe()
    assert caught.value.message == (
        "backend 'acme' (acme-anychip 0.1.0): anychip_probe: acme:0: memory_bytes_free is 2000, "
        "must be between 0 and memory_bytes_total (1000)"
    )


def test_the_allow_list_hides_and_says_so(site, monkeypatch):
    vendor.install(site)
    vendor.install(site, named("bolt"), name="bolt", module="bolt_chip", distribution="bolt-anychip")
    monkeypatch.setenv("ANYCHIP_PLUGINS", "bolt")
    assert [one.name for one in backends.installed()] == ["bolt"]
    with pytest.raises(BackendNotFound, match="is installed, but ANYCHIP_PLUGINS=bolt leaves it out"):
        backends.load("acme")


def test_an_allow_list_with_a_missing_name_is_an_error(site, monkeypatch):
    vendor.install(site)
    monkeypatch.setenv("ANYCHIP_PLUGINS", "acme, blot")
    with pytest.raises(BackendNotFound, match="ANYCHIP_PLUGINS names blot; installed: acme, acme-anychip"):
        backends.installed()


def test_auto_prefers_a_present_chip_to_the_host(site):
    vendor.install(site)
    vendor.install(site, host(), name="cpu", module="cpu_chip", distribution="anychip-cpu")
    choice = backends.choose("auto")
    assert (choice.backend.name, choice.reason) == ("acme", "auto: its device acme:0 is present")


def test_auto_falls_back_to_the_host_and_says_why(site):
    vendor.install(site, absent())
    vendor.install(site, host(), name="cpu", module="cpu_chip", distribution="anychip-cpu")
    choice = backends.choose("auto")
    assert (choice.backend.name, choice.reason) == ("cpu", "auto: no device of acme is present")


def test_auto_leaves_a_broken_backend_out_with_a_warning(site, caplog):
    vendor.install(site, vendor.raising_import())
    vendor.install(site, host(), name="cpu", module="cpu_chip", distribution="anychip-cpu")
    with caplog.at_level(logging.WARNING, logger="anychip.backends"):
        assert backends.choose("auto").backend.name == "cpu"
    assert "backend 'acme' (acme-anychip 0.1.0) is left out" in caplog.text
    assert "libacme.so.3" in caplog.text


def test_auto_refuses_to_order_two_present_chips(site):
    vendor.install(site)
    vendor.install(site, named("bolt"), name="bolt", module="bolt_chip", distribution="bolt-anychip")
    with pytest.raises(PreconditionFailed, match=r"several backends have a device: 'acme' .* 'bolt'"):
        backends.choose("auto")


def test_auto_goes_by_what_a_backend_says_of_itself_not_by_its_name(site):
    vendor.install(site, named("cpu"), name="cpu", module="cpu_chip", distribution="anychip-cpu")
    vendor.install(site, host("bolt"), name="bolt", module="bolt_chip", distribution="bolt-anychip")
    choice = backends.choose("auto")
    assert (choice.backend.name, choice.reason) == ("cpu", "auto: its device acme:0 is present")


def test_auto_refuses_to_order_two_that_every_machine_has(site):
    vendor.install(site, host(), name="cpu", module="cpu_chip", distribution="anychip-cpu")
    vendor.install(site, host("bolt"), name="bolt", module="bolt_chip", distribution="bolt-anychip")
    with pytest.raises(PreconditionFailed, match=r"several backends have a device: 'bolt' .* 'cpu'"):
        backends.choose("auto")


def test_the_backend_that_comes_with_the_platform_is_one_that_every_machine_has():
    assert backends.load("cpu").info.on_every_machine


def test_auto_without_any_device_gives_each_reason(site):
    vendor.install(site, absent())
    with pytest.raises(DeviceAbsent, match="acme: no slot holds one"):
        backends.choose("auto")


def test_a_named_backend_is_loaded_although_another_is_broken(site):
    vendor.install(site)
    vendor.install(site, "raise RuntimeError('x')", name="bolt", module="bolt_chip", distribution="bolt-anychip")
    assert backends.choose("acme").reason == "named by the recipe"


def test_the_example_needs_only_the_sdk():
    lines = [line for line in vendor.EXAMPLE.read_text().splitlines() if line.startswith(("import", "from"))]
    assert not any(line.startswith(("import anychip.", "from anychip.", "from anychip ")) for line in lines)
    assert Path(vendor.EXAMPLE).parent.joinpath("pyproject.toml").exists()
