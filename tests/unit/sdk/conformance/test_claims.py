"""Manifests are strict, and profiles ask for claims."""

from dataclasses import replace

import pytest

from anychip_sdk.conformance.cases import load_checks
from anychip_sdk.conformance.claims import CAPABILITIES
from anychip_sdk.conformance.manifest import ManifestInvalid, find_manifest, load_claims, read_claims
from anychip_sdk.conformance.profiles import covers, missing_claims
from anychip_sdk.conformance.requirements import REQUIREMENTS
from anychip_sdk.conformance.run.target import find_target
from anychip_sdk.errors import BackendNotFound, PreconditionFailed
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.profiles import PROFILES

GOOD = """\
api: 1
dtypes: [float32, bfloat16]
ops:
  linear: all
  rms_norm: [float32]
capabilities: {deterministic: true}
accumulator: {linear: float32}
limits: {alignment_bytes: 128}
fusions: [silu_mul]
waivers:
  - requirement: AC-OP-001[linear-bfloat16-wide]
    reason: slow sums
    link: https://example.org/7
    expires: 2027-01-31
    versions: "<0.3"
"""


@pytest.fixture
def manifest(tmp_path):
    def write(text: str):
        path = tmp_path / "conformance.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def problems(path) -> list[str]:
    with pytest.raises(ManifestInvalid) as raised:
        read_claims(path, "odd")
    return [problem.removeprefix(f"{path}:") for problem in raised.value.problems]


def test_a_manifest_becomes_claims(manifest):
    claims = read_claims(manifest(GOOD), "odd")
    assert claims.ops == {"linear": ("float32", "bfloat16"), "rms_norm": ("float32",)}
    assert claims.holds("op:linear:bfloat16")
    assert not claims.holds("op:rms_norm:bfloat16")
    assert claims.waivers[0].expires.year == 2027
    assert claims.subnormals == "preserve"


def test_the_whole_catalogue_is_claimed_with_a_word(manifest):
    text = "api: 1\ndtypes: [float32]\nops: all\n"
    assert read_claims(manifest(text), "odd").ops == {name: ("float32",) for name in CATALOGUE}
    assert problems(manifest(text.replace("all", "most"))) == ["3  ops: must be a map, or all"]


def test_every_problem_is_told_at_once_with_its_line(manifest):
    text = GOOD.replace("rms_norm: [float32]", "rms_nrom: [float32]").replace("true}", "maybe}")
    text = text.replace("expires: 2027-01-31", "expires: soon").replace("128", "-1") + "wavers: []\n"
    found = problems(manifest(text))
    assert [problem.partition(" ")[0] for problem in found] == ["16", "5", "6", "8", "14"]
    assert "Did you mean rms_norm?" in found[1]
    assert "Did you mean waivers?" in found[0]


def test_an_op_is_claimed_for_dtypes_of_the_device_only(manifest):
    assert "float16, which is not among the dtypes" in problems(manifest(GOOD.replace("[float32]", "[float16]")))[0]


def test_a_key_that_is_there_twice_is_an_error(manifest):
    assert problems(manifest("api: 1\napi: 1\ndtypes: [float32]\n"))[0].startswith("2")


def test_a_waiver_of_everything_is_refused(manifest):
    assert (
        "must be AC-OP-001 or one case" in problems(manifest(GOOD.replace("AC-OP-001[linear-bfloat16-wide]", "'*'")))[0]
    )


def test_a_package_without_a_manifest_claims_nothing():
    assert find_manifest("anychip_sdk") is None
    with pytest.raises(PreconditionFailed, match="claims nothing"):
        load_claims("anychip_sdk")


def test_the_cpu_backend_may_reach_every_profile():
    claims = load_claims("anychip_cpu", "cpu")
    assert [missing_claims(claims, profile) for profile in PROFILES] == [()] * len(PROFILES)


def test_a_profile_names_what_is_not_claimed():
    claims = load_claims("anychip_cpu", "cpu")
    without = replace(claims, ops={**claims.ops, "rope": ()}, capabilities={})
    assert missing_claims(without, "bringup") == ()
    assert missing_claims(without, "serving-core") == ("serving", "op:rope:float32")


def test_profiles_are_ordered():
    assert covers("serving-full", "kernel")
    assert covers("kernel", "kernel")
    assert not covers("bringup", "kernel")


def test_every_need_of_a_requirement_can_be_claimed():
    load_checks()
    needs = {need for rule in REQUIREMENTS.values() for need in rule.needs if ":" not in need}
    assert needs <= set(CAPABILITIES)


def test_an_unknown_backend_is_told_with_a_near_name():
    with pytest.raises(BackendNotFound, match="Did you mean 'cpu'"):
        find_target("cpuu")
