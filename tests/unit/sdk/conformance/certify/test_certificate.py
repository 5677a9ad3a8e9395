"""Certificates say what results say, and no field of either can be changed unseen."""

import json
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from anychip_sdk.conformance.certify import store
from anychip_sdk.conformance.certify.certificate import KillScore, issue, load_certificate, seal, to_json
from anychip_sdk.conformance.certify.verdict import judged, verdict
from anychip_sdk.conformance.certify.verify import verify
from anychip_sdk.conformance.results import load_results, save
from anychip_sdk.errors import IntegrityFailed, UsageError
from anychip_sdk.installed import installed_digest
from support.command_line import write_keys
from support.conformance_runs import case, made_up, waiver

FAILING = "AC-OP-001[linear-float32-wide]"


@pytest.fixture
def keys(tmp_path):
    return write_keys(tmp_path)


def write(folder, results, key=None):
    folder.mkdir(exist_ok=True)
    results = judged(results)
    save(results, folder)
    issue(folder, results, key=key, kill_score=KillScore(45, 45))
    return folder


def test_results_are_read_as_they_were_written(tmp_path):
    results = judged(made_up(case(FAILING, "failed", message="µ\n"), waivers=[waiver(FAILING)]))
    save(results, tmp_path)
    assert load_results(tmp_path) == results


def test_an_untouched_folder_is_intact_and_says_that_nobody_signed_it(tmp_path):
    found = verify(write(tmp_path / "run", made_up()))
    assert found.verdict.word == "CONFORMANT"
    assert found.signed_by is None


def test_a_signature_names_its_key(tmp_path, keys):
    folder = write(tmp_path / "run", made_up(), keys[0])
    assert verify(folder, keys[1]).signed_by == load_certificate(folder).signer
    assert verify(folder).signed_by is not None


def test_an_unsigned_folder_is_refused_where_a_key_is_named(tmp_path, keys):
    with pytest.raises(IntegrityFailed, match="not signed"):
        verify(write(tmp_path / "run", made_up()), keys[1])


def test_another_key_is_refused(tmp_path, keys):
    (tmp_path / "other").mkdir()
    stranger = Ed25519PrivateKey.generate()
    folder = write(tmp_path / "run", made_up(), keys[0])
    sealed = seal(load_certificate(folder), stranger)
    (folder / "certificate.json").write_text(to_json(sealed))
    verify(folder)
    with pytest.raises(IntegrityFailed, match="another key"):
        verify(folder, keys[1])


def test_a_key_of_another_kind_is_refused(tmp_path):
    (tmp_path / "key.pem").write_text("nonsense")
    with pytest.raises(UsageError, match="no private key"):
        write(tmp_path / "run", made_up(), tmp_path / "key.pem")


def is_believed(folder, public_key) -> bool:
    try:
        verify(folder, public_key)
    except IntegrityFailed:
        return False
    return True


def leaves(value, path=()):
    """The path of every plain value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [leaf for key, item in items for leaf in leaves(item, (*path, key))]
    return found or [path]


def changed(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return [*value, "x"] if isinstance(value, list) else {"x": 1} if isinstance(value, dict) else f"{value or ''}x"


def test_no_field_of_results_or_certificate_can_be_changed(tmp_path, keys):
    cases = [case(FAILING, "failed"), case("AC-OP-003", measured={"headroom": 0.5})]
    folder = write(tmp_path / "run", made_up(*cases, waivers=[waiver(FAILING)]), keys[0])
    unseen, tried = [], 0
    for name in ("results.json", "certificate.json"):
        path = folder / name
        before = path.read_text(encoding="utf-8")
        for leaf in leaves(json.loads(before)):
            document = json.loads(before)
            parent = document
            for key in leaf[:-1]:
                parent = parent[key]
            parent[leaf[-1]] = changed(parent[leaf[-1]])
            path.write_text(json.dumps(document), encoding="utf-8")
            tried += 1
            if is_believed(folder, keys[1]):
                unseen.append((name, leaf))
        path.write_text(before, encoding="utf-8")
    assert tried > 150
    assert unseen == []
    verify(folder, keys[1])


def test_a_forged_verdict_is_contradicted_by_name(tmp_path):
    folder = write(tmp_path / "run", made_up(case(FAILING, "failed")))
    forged = seal(replace(load_certificate(folder), verdict="CONFORMANT", is_conformant=True))
    (folder / "certificate.json").write_text(to_json(forged))
    with pytest.raises(IntegrityFailed, match=r"says CONFORMANT; recomputed from results\.json it is NOT CONFORMANT"):
        verify(folder)


def test_a_forged_status_is_contradicted_by_name(tmp_path):
    results = made_up(case(FAILING, "failed", status="passed"))
    save(results, tmp_path)
    issue(tmp_path, results)
    with pytest.raises(IntegrityFailed, match="stored as passed; recomputed it is failed"):
        verify(tmp_path)


def test_results_that_lack_cases_of_this_suite_are_found_out(tmp_path, monkeypatch):
    results = made_up()
    monkeypatch.setattr("anychip_sdk.conformance.certify.verify.suite_digest", lambda: results.suite.digest)
    with pytest.raises(IntegrityFailed, match="AC-DEVICE-002 is missing in the results"):
        verify(write(tmp_path / "run", results))


def test_damaged_files_are_no_tracebacks(tmp_path):
    folder = write(tmp_path / "run", made_up())
    (folder / "results.json").write_text("{")
    with pytest.raises(IntegrityFailed, match="damaged"):
        verify(folder)
    with pytest.raises(IntegrityFailed, match="can't be read"):
        verify(tmp_path / "nowhere")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Keeps a run of the CPU backend as it is installed here."""
    monkeypatch.setenv("ANYCHIP_HOME", str(tmp_path / "home"))

    def keep(**changes):
        results = made_up()
        identity = replace(
            results.identity,
            backend="cpu",
            distribution="anychip-cpu",
            digest=installed_digest("anychip-cpu", "cpu"),
            **changes.pop("identity", {}),
        )
        results = replace(results, identity=identity, **changes)
        folder = write(tmp_path / f"run-{len(list(tmp_path.iterdir()))}", results)
        return store.keep(folder, load_certificate(folder))

    return keep


def test_a_certificate_counts_for_the_files_that_are_installed(kept):
    assert store.valid_certificate_for("anychip-cpu") is None
    kept()
    found = store.valid_certificate_for("Anychip_CPU")
    assert (found.profile, found.is_signed, found.kill_score) == ("kernel", False, KillScore(45, 45))
    assert store.valid_certificate_for("anychip-cuda") is None


def test_a_certificate_for_other_files_does_not_count(kept):
    kept(identity={"version": "9"})
    assert store.valid_certificate_for("anychip-cpu", digest="00" * 32) is None
    [found] = store.certificates_for("anychip-cpu", digest="00" * 32)
    assert "for other files (version 9)" in found.problem


def test_a_bad_verdict_and_an_old_suite_do_not_count(kept):
    kept(cases=made_up(case(FAILING, "failed")).cases)
    kept(profile="bringup", suite=replace(made_up().suite, version="7.0.0"))
    problems = sorted(one.problem for one in store.certificates_for("anychip-cpu"))
    assert ["verdict is NOT" in problems[1], "made by suite 7.0.0" in problems[0]] == [True, True]


def test_an_edited_certificate_does_not_count(kept):
    path = kept() / "certificate.json"
    path.write_text(path.read_text().replace('"kernel"', '"serving-full"'))
    assert store.valid_certificate_for("anychip-cpu") is None


def test_the_verdict_in_a_certificate_is_the_recomputed_one(tmp_path):
    results = made_up(case(FAILING, "failed"))
    assert load_certificate(write(tmp_path / "run", results)).verdict == verdict(results).word
