"""Job arrays: one job over many regions, data sets and settings.

grid_file       the file that a user writes: the job, where its lines come from, how they are placed and run
lines           the lines: read from a file, a query or a matrix, each with its place in it and a lasting key
placement       the region of a line, with reasons
load_grid       the grid as it was read, its job and all its lines checked
plan_grid       what runs where, what is copied first, what it costs
copies          data copied into the region of the lines that read them
data_places     whether what is read is there, and how much it is
journal         what a grid has done and is about to do, on disk; `read_grid` reads it
controller      runs a grid, and is the only one that does; `control_grid` is its door
report          what came of it: a row a line, totals, the best lines
batch_options   what the grid's file says of AWS Batch
batch           AWS Batch starts the lines: as files, submitted, and what its children run
"""
