"""One call of a kernel, judged by the float64 reference: what checks of ops and pools share. Knows no requirement."""
