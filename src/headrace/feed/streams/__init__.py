"""What has no count and is headrace's own: it opens its lanes at any place, so that nothing is replayed.

steps          what an open lane is; `.map`, `.filter` and `.flat_map`, of rows and behind `.pack`
stream         what `.filter` and `.flat_map` make of a source
mixed_stream   a mixture of such things
packing        puts documents together into sequences of one length
"""
