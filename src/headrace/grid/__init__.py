"""Job arrays: one job over many regions, data sets and settings.

grid_file       the file that a user writes: the job, where its lines come from, how they are placed and run
read_lines      the lines: from a file (`line_file`), a query (`line_query`) or a matrix, each with its place and a key
place_line      the region of a line, with reasons
load_grid       the grid as it was read, its job and all its lines checked
plan_grid       what runs where, what is copied first, what it costs
copy_action     data copied into the region of the lines that read them
data_places     whether what is read is there, and how much it is
journal         writes what a grid has done and is about to do, as `grid_record` has it; `read_grid` reads it
controller      runs a grid, and is the only one that does; `control_grid` is its door
grid_report     what came of it: a row a line, totals, the best lines; `read_report` reads it, `grid_documents` shows it
batch           AWS Batch starts the lines: as files, submitted, and what its children run
"""
