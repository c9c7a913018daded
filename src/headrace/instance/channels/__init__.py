"""Input channels: what is in them, which host gets which part, and how it comes there.

    stage_orders    `StageOrder`: which channels are staged and served, as a file of the run
    object_listing  the objects of a channel, manifests, and where an object lies below the channel's directory
    download        File: downloads, all of a channel or nothing
    channel_links   what a host finds under the channel's name: links, also where its file system is its own
    pipes           Pipe: which host gets what, the bytes of an epoch, RecordIO, the FIFOs of a host
    fastfile        FastFile: the file system; `blocks` parts of objects, read when they are asked for
    mounts          whether FUSE can mount, and what it has mounted; `mountinfo` all mounts of this machine

Everything takes its objects from a store, `headrace.instance.storage`, or from anything that does the same.
"""
