"""How the services speak gRPC: one server bootstrap, one channel factory, one error table.

Servicers raise `shoal.errors`, stubs raise them again on the other side. A server is made by
`shoal.rpc.server.RpcServer`, a channel by `shoal.rpc.channel.connect`.
"""
