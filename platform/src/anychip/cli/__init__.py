"""The `platform` command: one file per verb. Knows how results are shown; decides nothing."""
