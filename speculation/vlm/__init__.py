"""A vision-language model whose state belongs to the caller.

Home of everything that touches transformers: `load` (folder -> model), `processing` and `positions` (prompt and frame
-> model inputs), `cache` (keys and values in rows of slots), `forward` (the only layer loop), `session` (one row that
grows a tree).
"""
