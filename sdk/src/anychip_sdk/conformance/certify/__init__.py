"""Verdicts and certificates, recomputed from results. Knows waivers, profiles and seals; runs nothing."""
