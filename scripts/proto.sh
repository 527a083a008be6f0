#!/bin/sh
# Writes the Python side of the protocols: run it after a change of a .proto file.
cd "$(dirname "$0")/../src" || exit 1
python -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. policyloop/models/proto/value.proto
