"""What has no count and is headrace's own: it opens its lanes at any place, so that nothing is replayed.

open_lane      what an open lane is
steps          `.map`, `.filter` and `.flat_map`, of rows and behind `.pack`
stream         what `.filter` and `.flat_map` make of a source
mixed_stream   a mixture of such things: `mixed_lane`
packing        puts documents together into sequences of one length: `packed_lane`, `sequences`
"""
