"""What is written about a run: HTML, tables, charts, the difference of two runs. Knows results; runs nothing."""
