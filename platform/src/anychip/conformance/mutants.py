"""What the suite's selftest loads where the platform is installed. Knows no mutant."""

from anychip.conformance import compile_mutants, e2e_mutants, graph_mutants

__all__ = ["compile_mutants", "e2e_mutants", "graph_mutants"]
