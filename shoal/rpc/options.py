"""Settings of gRPC that both ends of a connection must agree on."""

MAX_MESSAGE_BYTES = 4 << 20
"""Largest message: gRPC's own default, so that any client can talk to the services. Bigger things are streamed."""

MAX_METADATA_BYTES = 256 << 10
"""Largest headers or trailers. An error with its details travels in the trailers; gRPC's default of 8 KiB would
replace a long one by a complaint about its size."""

_KEEPALIVE_TIME_S = 30
_KEEPALIVE_TIMEOUT_S = 10

Options = list[tuple[str, str | int]]

_BOTH_ENDS: Options = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", 2 * MAX_METADATA_BYTES),
    # A peer that vanishes without a word (power, network) is noticed within time + timeout.
    ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_S * 1000),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_S * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

SERVER: Options = [
    *_BOTH_ENDS,
    # Without it a second server on the same port starts happily and takes every other connection.
    ("grpc.so_reuseport", 0),
    # A server counts pings that come too often and then closes the connection, calls in flight included. Both
    # limits have to allow what the client's keepalive does.
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_TIME_S * 1000 // 3),
    ("grpc.http2.max_ping_strikes", 0),
]

CLIENT: Options = [
    *_BOTH_ENDS,
    # A retry is sent from a buffer. gRPC's default of 256 KiB means that larger requests are never retried.
    ("grpc.enable_retries", 1),
    ("grpc.per_rpc_retry_buffer_size", 2 * MAX_MESSAGE_BYTES),
    # Found again within seconds after a restart, not after gRPC's default of up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 3000),
    # Services talk to each other directly, whatever http_proxy says.
    ("grpc.enable_http_proxy", 0),
]
