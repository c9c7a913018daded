"""A Slurm cluster as the job's machines: one heterogeneous job, one component a group, one node a host.

    submitting machine    writes the run's folder on the shared file system and a batch script, calls sbatch
    leader's node         the batch script starts the lead: the supervisor that every engine has, whose one process is
                          an `srun` over all components
    every node            one task: it runs the agent of its host

The run's folder is all that they share. Component 0 is the leader's group, so the lead runs on the leader's node and no
other node's end is the end of the job.
"""
