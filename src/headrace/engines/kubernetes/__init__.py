"""A Kubernetes cluster as the job's machines: one pod a host, one Job a pod, all of a run owned by one ConfigMap.

    submitting machine    writes the objects, and later brings the record home: from the leader's pod, by exec
    leader's pod          its supervisor is the authority: statuses, attempts, the last word
    every other pod       a supervisor for that one host, which the leader tells what to do

The states of pods are never the verdict on a run, and their logs never its record.
"""
