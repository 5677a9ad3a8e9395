"""Measure a running service over HTTP and sum the measurements up. Knows no engine and no kernel."""
