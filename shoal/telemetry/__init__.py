"""What the services tell about themselves: traces, metrics and logs.

`setup` is called once by a process; `trace` and `metrics` are used everywhere and cost next to nothing without it;
`names` holds every name that goes out.
"""
