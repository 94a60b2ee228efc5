"""Who a process is, who calls it, and what each caller may do.

`permissions` has the table of roles, `credentials` what a process was given, `tls` and `tokens` the files behind it,
`callers` the check of each call, `authority` certificates for development.
"""
