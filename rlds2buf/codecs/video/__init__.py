"""Videos (MP4 of AV1, H.264, HEVC) with PyAV: facts, frames as pixels, files made of pixels or of packets.

A frame is known by its number in the order of presentation, 0-based.  Where a video stands in the place of a column
of pixels, each row holds the name of its frame (:mod:`~rlds2buf.codecs.video.frame_names`).
"""
