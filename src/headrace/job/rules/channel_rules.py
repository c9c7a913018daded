"""Rules about channels: who gets which, under which name, and which of their options fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.job.problems.finding import Finding, show
from headrace.job.rules.raw_access import Data, groups_of_channel, mapping, pick


def channels(data: Data) -> Iterator[Finding]:
    """All channels name groups, or none does; no two have one variable SM_CHANNEL_*."""
    with_groups: list[str] = []
    without: list[str] = []
    variables: dict[str, str] = {}
    for name, channel in mapping(data, "inputs").items():
        if isinstance(channel, (str, Mapping)):
            (with_groups if groups_of_channel(channel)[1] is not None else without).append(name)
        variable = f"SM_CHANNEL_{name.upper()}"
        if variable in variables:
            message = f"has the same variable {variable} as the channel {variables[variable]!r}"
            yield Finding(("inputs", name), message, hint="choose names that differ in more than case")
        variables.setdefault(variable, name)
    if with_groups and without:
        message = (
            f"Some channels have assigned instance groups: [{', '.join(with_groups)}] "
            f"while others not: [{', '.join(without)}]"
        )
        hint = "give instance_groups to all channels, or to none"
        yield Finding(("inputs", without[0]), message, hint=hint, code="ValidationException")


def modes(data: Data) -> Iterator[Finding]:
    """Streams have options that folders have not."""
    for name, channel in mapping(data, "inputs").items():
        if not isinstance(channel, Mapping):
            continue
        path = ("inputs", name)
        mode = channel.get("input_mode") or data.get("input_mode") or "File"
        augmented = channel.get("s3_data_type") == "AugmentedManifestFile"
        hint = "write input_mode: Pipe, or leave it out"
        for keys, value in (
            (("compression", "compression_type"), "Gzip"),
            (("record_wrapping", "record_wrapper_type"), "RecordIO"),
        ):
            key, given = pick(channel, *keys)
            if given == value and mode != "Pipe":
                yield Finding((*path, key), f"{value} is possible with input_mode Pipe only", show(given), hint)
        if augmented and mode != "Pipe":
            message = "AugmentedManifestFile is possible with input_mode Pipe only"
            yield Finding((*path, "s3_data_type"), message, hint=hint)
        names = channel.get("attribute_names")
        if augmented and not names:
            hint = "name the attributes to stream, such as [source-ref, label]"
            yield Finding((*path, "attribute_names"), "is required with AugmentedManifestFile", hint=hint)
        elif names and not augmented:
            message = "is possible with s3_data_type AugmentedManifestFile only"
            yield Finding((*path, "attribute_names"), message, show(names))
        if isinstance(names, (list, tuple)) and len(names) > 16:
            yield Finding((*path, "attribute_names"), "must have at most 16 attributes", f"{len(names)}")
