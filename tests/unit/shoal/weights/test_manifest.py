import pytest

from shoal.errors import InvalidArgument
from shoal.v1 import weights_pb2
from shoal.weights.manifest import BUCKET_BYTES, Manifest, TensorSpec


def manifest_of(*sizes: int) -> Manifest:
    return Manifest(tuple(TensorSpec(f"t{i}", "float32", (size,)) for i, size in enumerate(sizes)))


def test_a_manifest_survives_the_wire() -> None:
    manifest = Manifest((TensorSpec("a", "bfloat16", (3, 5)), TensorSpec("b", "float32", ())))
    assert Manifest.from_wire(manifest.to_wire()) == manifest


def test_the_digest_depends_on_names_types_shapes_and_order() -> None:
    one, two = TensorSpec("a", "float32", (2, 3)), TensorSpec("b", "float32", (6,))
    digests = {
        Manifest(tensors).digest
        for tensors in [
            (one, two),
            (two, one),
            (one,),
            (TensorSpec("a", "bfloat16", (2, 3)), two),
            (TensorSpec("a", "float32", (3, 2)), two),
        ]
    }
    assert len(digests) == 5


def test_buckets_contain_every_tensor_once_in_order_and_aligned() -> None:
    manifest = manifest_of(3, 5, 2_000_000, 7, 1, 1_000_000, 1_000_000, 9)
    buckets = list(manifest.buckets())
    assert [spec for bucket in buckets for spec in bucket.tensors] == list(manifest.tensors)
    for bucket in buckets:
        assert all(offset % 16 == 0 for offset in bucket.offsets)
        end = bucket.offsets[-1] + bucket.tensors[-1].num_bytes
        assert end <= bucket.num_bytes < end + 16
        assert len(bucket.tensors) == 1 or end <= BUCKET_BYTES + 16


def test_a_large_tensor_has_a_separate_broadcast() -> None:
    buckets = list(manifest_of(1, 2_000_000, 1).buckets())
    assert [len(bucket.tensors) for bucket in buckets] == [1, 1, 1]


@pytest.mark.parametrize(
    ("tensor", "field"),
    [
        (weights_pb2.TensorSpec(name="", dtype="float32", shape=[1]), "manifest.tensors[0].name"),
        (weights_pb2.TensorSpec(name="a", dtype="int8", shape=[1]), "manifest.tensors[0].dtype"),
        (weights_pb2.TensorSpec(name="a", dtype="float32", shape=[0]), "manifest.tensors[0].shape"),
    ],
)
def test_the_error_for_a_bad_tensor_names_its_field(tensor: weights_pb2.TensorSpec, field: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        Manifest.from_wire(weights_pb2.Manifest(tensors=[tensor]))
    assert error.value.violations[0].field == field


def test_a_digest_of_other_tensors_is_refused() -> None:
    message = manifest_of(3).to_wire()
    message.tensors[0].shape[0] = 4
    with pytest.raises(InvalidArgument, match=r"manifest\.digest"):
        Manifest.from_wire(message)
