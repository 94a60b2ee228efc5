"""Calls in memory in place of sockets: `weather.py` delays and breaks them, `client.py` and `server.py` have the
interface of `grpc.aio`. Everything of `shoal.rpc` above it is real: messages, statuses, deadlines, repeats."""
