"""AWS Batch starts a grid: one child of an array job a line, which starts or adopts the line's training job.

retry_rules     exit codes of a child, and what Batch does after each
    grid_bundle     the grid as children read it: its lines, jobs and code, and the array file
    freeze_grid     from a plan to the bundle: jobs, their code, the array file
    frozen_copies   copies of data that lines read, made by a job before the array
    batch_names     what everything is called in the account
    batch_image     the image of the children: its definition and their wrapper
    batch_roles     the roles of the children
    batch_requests  the job definition and the submission, as the API takes them
    export_batch    all of it as files
    submit_array    stores the bundle and submits the array job, once
    run_step        what a child needs of the bundle, and does
"""
