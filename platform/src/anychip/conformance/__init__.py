"""The conformance suite's tracks that need the platform: graph rewrites and serving. Knows no chip."""
