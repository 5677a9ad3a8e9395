"""Backends that are wrong in one way each, and the requirement that must find it. Knows no check's inside."""

from anychip_sdk.conformance.mutants.base import (
    MUTANTS,
    HealthyPlugin,
    Mutant,
    MutantLoader,
    healthy,
    healthy_claims,
    healthy_for,
    load_mutants,
    mutant,
    with_argument,
)

__all__ = [
    "MUTANTS",
    "HealthyPlugin",
    "Mutant",
    "MutantLoader",
    "healthy",
    "healthy_claims",
    "healthy_for",
    "load_mutants",
    "mutant",
    "with_argument",
]
