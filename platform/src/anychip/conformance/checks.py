"""What the entry point loads: importing it registers the requirements of the tracks graph and e2e. Knows no runner."""

from anychip.conformance import e2e, e2e_requests, graph, graph_compile
from anychip.graph.fusions import FUSIONS, ORDER
from anychip_sdk.conformance.coverage import declare_fusions

declare_fusions({*ORDER, *(fusion.name for fusion in FUSIONS)})

__all__ = ["e2e", "e2e_requests", "graph", "graph_compile"]
