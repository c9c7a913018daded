"""The messages of the gRPC stream, made at run time: no generated code to keep.

service DatasetFeed { rpc get_examples(Dummy) returns (stream Example); }
message Dummy { }
message Example { bytes image = 1; bytes label = 2; }
"""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

METHOD = "/bench.DatasetFeed/get_examples"
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def _classes() -> tuple[type, type]:
    file = descriptor_pb2.FileDescriptorProto(name="bench_dataset_feed.proto", package="bench", syntax="proto3")
    file.message_type.add(name="Dummy")
    example = file.message_type.add(name="Example")
    kind = descriptor_pb2.FieldDescriptorProto
    for number, name in enumerate(("image", "label"), start=1):
        example.field.add(name=name, number=number, type=kind.TYPE_BYTES, label=kind.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    dummy, made = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"bench.{name}")) for name in ("Dummy", "Example")
    )
    return dummy, made


Dummy, Example = _classes()
