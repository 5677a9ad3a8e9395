"""What the entry point loads: importing it registers the requirements of the tracks graph and e2e. Knows no runner."""

from anychip.conformance import e2e, e2e_requests, graph, graph_compile
from anychip.graph.fusions import FUSIONS
from anychip_sdk.conformance.coverage import declare_fusions
from anychip_sdk.fusion import POLICIES

declare_fusions({*POLICIES, *(fusion.name for fusion in FUSIONS)})

__all__ = ["e2e", "e2e_requests", "graph", "graph_compile"]
