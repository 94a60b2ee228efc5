"""Decides who a process is, who calls it, and what each caller may do.

`permissions` has the table of roles. `credentials` has the credentials of a process, and `tls` and `tokens` read the
files of credentials. `callers` checks each call. `authority` issues certificates for development.
"""
