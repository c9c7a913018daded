"""Input channels: what is in them, which host gets which part, and how it comes there.

    stage_orders    `StageOrder`: which channels are staged and served, as a file of the run
    object_paths    where an object lies below its channel's directory
    manifest        manifest files and augmented manifest files
    shares          which host gets what, and in which order an epoch delivers it
    object_listing  the objects of a channel
    download        File: downloads, all of a channel or nothing
    isolated_links  where the links of an isolated instance lead
    channel_links   what a host finds under the channel's name: links
    recordio        the framing of RecordIO
    pipe_bytes      Pipe: the bytes of an epoch, in pieces
    pipes           Pipe: the FIFOs of a host
    blocks          FastFile: parts of objects, read when they are asked for
    fastfile        FastFile: the file system
    mounts          FUSE mounts of this machine; `mountinfo`: all mounts

Everything takes its objects from a store, `headrace.instance.storage`, or from anything that does the same.
"""
