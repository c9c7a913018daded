"""Linux processes: starting them tied to their parent, finding their descendants, and ending them.

Shared by the agent and the engines' supervisors, which both promise that nothing outlives a job. Standard library only.
"""
