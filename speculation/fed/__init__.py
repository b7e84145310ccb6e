"""A fed head: a draft of one decoder layer that continues from the target's own features, docs/decoding.md.

`encoder` runs on the verifier, `head` and `session` on the robot; training needs all of them.
"""
