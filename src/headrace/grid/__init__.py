"""Job arrays: one job over many regions, data sets and settings.

grid_file       the file that a user writes: the job, where its lines come from, how they are placed
lines           the lines: read from a file, a query or a matrix, each with its place in it and a lasting key
"""
