"""Linux processes: starting them tied to their parent, seeing who descends from whom, and ending them.

Shared by the agent and the engines' supervisors, which both promise that nothing outlives a job. Standard library only.
"""
