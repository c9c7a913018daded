"""Writes TFRecord shards of 32 x 32 crops of two photographs. Does nothing if they are there.

    python prepare.py [DIRECTORY]

The photographs come with scikit-learn: a pagoda above a lake (china.jpg) and a dahlia (flower.jpg). A crop's label says
what is on it. The right quarter of every region is held out: no pixel of a training image is in a test image.

A record is a tf.train.Example with `image` (3,072 bytes: 32 x 32 x 3, row by row) and `label` (int64).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import sklearn
import tensorflow as tf

SIZE = 32
REGIONS = {  # label: photograph, and the region's columns and rows, in pixels
    "sky": ("china", (350, 640), (0, 190)),
    "pagoda": ("china", (100, 330), (60, 350)),
    "lake": ("china", (350, 530), (210, 290)),
    "trees": ("china", (350, 640), (320, 427)),
    "petals": ("flower", (210, 400), (120, 320)),
    "leaves": ("flower", (440, 640), (0, 380)),
}
TRAIN_CROPS, TEST_CROPS = 400, 100  # of each region
SHARDS = {"train": 8, "test": 1}


def photograph(name: str) -> np.ndarray:
    """Returns a photograph of scikit-learn's, uint8, shape (427, 640, 3)."""
    path = Path(sklearn.__file__).parent / "datasets" / "images" / f"{name}.jpg"
    return tf.io.decode_jpeg(tf.io.read_file(str(path)), channels=3).numpy()


def crops(region: np.ndarray, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Returns crops at random places of a part of a photograph."""
    rows, columns = (rng.integers(0, extent - SIZE + 1, count) for extent in region.shape[:2])
    return [region[row : row + SIZE, column : column + SIZE] for row, column in zip(rows, columns, strict=True)]


def example(image: np.ndarray, label: int) -> bytes:
    """Returns a record."""
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(directory: Path, part: str, records: list[bytes]) -> None:
    """Writes the records of a part, shard by shard."""
    directory.mkdir(parents=True, exist_ok=True)
    shards = SHARDS[part]
    for shard in range(shards):
        path = directory / f"{part}-{shard:05d}-of-{shards:05d}.tfrecord"
        temporary = path.with_name(path.name + ".part")
        with tf.io.TFRecordWriter(str(temporary)) as writer:
            for record in records[shard::shards]:
                writer.write(record)
        temporary.replace(path)


def main(directory: Path) -> None:
    """Writes both parts."""
    if all(len(list((directory / part).glob("*.tfrecord"))) == count for part, count in SHARDS.items()):
        return
    rng = np.random.default_rng(11)
    records: dict[str, list[bytes]] = {"train": [], "test": []}
    for label, (name, (left, right), (top, bottom)) in enumerate(REGIONS.values()):
        cut = right - (right - left) // 4
        picture = photograph(name)[top:bottom]
        for part, first, last, count in (("train", left, cut, TRAIN_CROPS), ("test", cut, right, TEST_CROPS)):
            records[part] += [example(image, label) for image in crops(picture[:, first:last], count, rng)]
    for part, found in records.items():
        rng.shuffle(found)
        write(directory / part, part, found)
    print(f"wrote {len(records['train'])} training and {len(records['test'])} test images to {directory}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data")
