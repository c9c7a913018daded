"""Where a line runs, and why there: a pure function of the line, the price list and what the user says."""
