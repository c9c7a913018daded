"""The trial: measures the data loading of a script that nobody has changed. See `headrace doctor`.

Two sides. `launch` and `transfer` run beside the command line. The others run inside the user's Python processes:
`bootstrap/sitecustomize.py`, which Python imports by itself when its folder is in PYTHONPATH, loads them from their
files. They use the standard library and what the script has imported (torch, numpy), and nothing else of headrace, so
the script's environment need not have headrace at all.

    launch ---- PYTHONPATH, HEADRACE_TRIAL ----> sitecustomize -> hooks -> watch -> batches
       <------- one file of JSON lines a process, in a private folder <- spool <-'

What the probe promises: until the replay begins, the script gets the very batches and random numbers that it would get
without it. A figure that cannot be written is lost; the script goes on.
"""
