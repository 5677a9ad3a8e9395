"""The order of fusions: built-in policies first, then a backend's own. Knows no graph."""

from anychip_sdk.fusion import POLICIES, Fusion, policies_with
from anychip_sdk.ops import silu_mul


def fusion(policy: str) -> Fusion:
    return Fusion(policy, f"of {policy}", silu_mul, silu_mul)


def test_without_fusions_of_a_backend_the_policies_are_the_built_in_ones():
    assert policies_with(()) == POLICIES


def test_a_backends_own_policies_follow_once_each_in_the_order_in_which_it_lists_them():
    own = [fusion(policy) for policy in ("zeta", "silu_mul", "alpha", "zeta")]
    assert policies_with(own) == (*POLICIES, "zeta", "alpha")


def test_whole_blocks_come_before_their_parts():
    assert POLICIES.index("mha") < POLICIES.index("qkv_proj")
    assert POLICIES.index("ffn") < POLICIES.index("gate_up_proj") < POLICIES.index("silu_mul")
