"""What came of a grid: a row a line, totals, the best lines; as tables, Markdown, CSV and one HTML page."""
