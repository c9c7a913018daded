"""The base class of Mosaic Streaming's vision datasets, which are not measured."""


class VisionDataset:
    """Nothing is made of it."""
