"""`headrace doctor`: what a script's data loading costs, and whether data hosts would help."""
