"""Reports and comparisons for people: documents, Markdown, and one self-contained HTML page. Pure.

Nothing is computed here: every number shown is a field of the report or of the comparison, which `--output json` holds;
the pages also draw charts, which `headrace.insight.charts` makes.
"""
