"""AWS Batch starts a grid: one child of an array job a line, which starts or adopts the line's training job.

grid_bundle     the grid as children read it: its lines, jobs and code, the array file, copies of data
batch_requests  what Batch is told, and what everything is called in the account: image, roles, definition, jobs
submit_array    all of it as files; stores the bundle and submits the array job, once
run_step        what a child needs of the bundle, and does
"""
