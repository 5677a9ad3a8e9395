"""Whole steps, or pieces of them, as native programs. Knows the way from a program's calls to one call."""

from anychip_cpu.programs.compiled import TOKENS_MAX, Compiled, compiled
from anychip_cpu.programs.refused import refusals

__all__ = ["TOKENS_MAX", "Compiled", "compiled", "refusals"]
