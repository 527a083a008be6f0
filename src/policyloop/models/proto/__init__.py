"""The protocol of the value service. `value_pb2*.py` are written from `value.proto` by `scripts/proto.sh`; edit that file only."""
