"""What the suite's selftest loads where the platform is installed. Knows no mutant."""

from anychip.conformance import e2e_mutants, graph_mutants

__all__ = ["e2e_mutants", "graph_mutants"]
