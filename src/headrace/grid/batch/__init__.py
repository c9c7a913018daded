"""AWS Batch starts a grid: one child of an array job a line, which starts or adopts the line's training job.

grid_bundle     the grid as children read it: its lines, jobs and code, and the array file
freeze_grid     from a plan to the bundle: jobs, their code, the array file
frozen_copies   copies of data that lines read, made by a job before the array
batch_names     what everything is called in the account
batch_roles     the roles of the children
batch_requests  what Batch is told: image, exit codes, the job definition and the submission
export_batch    all of it as files
submit_array    stores the bundle and submits the array job, once
run_step        what a child needs of the bundle, and does
"""
