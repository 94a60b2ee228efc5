# Each target is thin: what it runs can be run by hand.
PROTOS := $(wildcard proto/shoal/v1/*.proto)

.PHONY: proto
proto:  ## Regenerate shoal/v1 from proto/
	python -m grpc_tools.protoc -Iproto --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. $(PROTOS)
