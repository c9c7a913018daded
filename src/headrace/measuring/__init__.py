"""What measures a loader in the user's own processes: the trial of `headrace doctor`, and `headrace feed bench`.

`loopback` has a feed server on this machine, `windows` measures it beside other loaders and beside what the machine can
do. The rest is the trial, which measures the data loading of a script without changing it.

`run_profiled` and `transfer` run beside the command line. The others run inside the user's Python processes:
`bootstrap/sitecustomize.py`, which Python imports by itself when its folder is in PYTHONPATH, loads them from their
files. They use the standard library, what the script has imported (torch, numpy), and of headrace only two files that
are loaded the same way (what a step is, how many cores there are), so the script's environment need not have headrace.

    run_profiled -- PYTHONPATH, HEADRACE_TRIAL --> sitecustomize -> watch -> facts
         <------- one file of JSON lines a process, in a private folder <-----'

Until the replay begins, the script gets the same batches and random numbers as without the probe. A figure that cannot
be written is lost; the script goes on.
"""
