"""gRPC for all services: one server, one channel factory, one error table, one table of retries.

Servicers and stubs raise `shoal.errors`. `server.RpcServer` creates a server, `channel.connect` a channel.
"""
