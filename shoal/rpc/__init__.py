"""gRPC for all services: one server, one channel factory, one error table, one table of retries.

Servicers raise `shoal.errors`, and stubs raise the same errors at the client. `server.RpcServer` creates a server,
`channel.connect` a channel.
"""
