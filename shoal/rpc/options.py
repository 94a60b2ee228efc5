"""gRPC options of servers and channels. Both ends of a connection must agree on most of them."""

MAX_MESSAGE_BYTES = 4 << 20
"""The size of the largest message: gRPC's default, so that any client can call. Larger data is streamed."""

MAX_METADATA_BYTES = 256 << 10
"""The size of the largest headers or trailers. At gRPC's default, 8 KiB, an error about size replaces a long error."""

_KEEPALIVE_TIME_S = 30
_KEEPALIVE_TIMEOUT_S = 10

Options = list[tuple[str, str | int]]

_BOTH_ENDS: Options = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", 2 * MAX_METADATA_BYTES),
    # Notice within time + timeout that a peer is gone without closing the connection (power, network).
    ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_S * 1000),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_S * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

SERVER: Options = [
    *_BOTH_ENDS,
    # Without it a second server can start on the same port, and gets every other connection.
    ("grpc.so_reuseport", 0),
    # A server counts pings that arrive too often, and then closes the connection with all calls in flight. Both
    # limits must allow the client's keepalive.
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_TIME_S * 1000 // 3),
    ("grpc.http2.max_ping_strikes", 0),
]

SERVER_WITH_TLS: Options = [
    *SERVER,
    # gRPC checks a certificate only when a connection begins. End connections after an hour, so that a withdrawn
    # certificate loses access. Clients make new connections, and calls in flight finish on the old ones.
    ("grpc.max_connection_age_ms", 3600 * 1000),
]

CLIENT: Options = [
    *_BOTH_ENDS,
    # Retries are sent from a buffer. With gRPC's default of 256 KiB larger requests are never retried.
    ("grpc.enable_retries", 1),
    ("grpc.per_rpc_retry_buffer_size", 2 * MAX_MESSAGE_BYTES),
    # Reconnect within seconds after a restart, not after gRPC's default of up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 3000),
    # Services connect directly to each other, whatever http_proxy is set to.
    ("grpc.enable_http_proxy", 0),
]
