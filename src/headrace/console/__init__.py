"""What people look at in a browser: a local web page over the runs of this machine.

It reads runs and never writes to one. The figures are those of `headrace.insight`; what is drawn over time is
`headrace.console.charts`, which `headrace metrics` prints, and `headrace.console.timeline`, which `headrace timeline`
prints. Only `app`, `guard`, `live` and `server` need the libraries of the extra ``headrace[ui]``.
"""
