"""The conformance suite: requirements, checks, verdicts and certificates. Knows the SDK alone."""
