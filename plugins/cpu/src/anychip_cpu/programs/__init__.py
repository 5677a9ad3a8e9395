"""Whole steps as native programs. Knows the way from a graph to one call."""

from anychip_cpu.programs.compiled import TOKENS_MAX, Compiled, compiled

__all__ = ["TOKENS_MAX", "Compiled", "compiled"]
