"""What people look at in a browser: a local web page over the runs of this machine.

It reads runs and never writes to one. The figures are those of `headrace.insight`: its reports, its `timeseries`, which
`headrace metrics` prints, and its `timeline`, which `headrace timeline` prints. Only `app`, `guard`, `live` and
`ui_server` need the libraries of the extra ``headrace[ui]``.
"""
