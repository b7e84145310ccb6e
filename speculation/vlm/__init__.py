"""A vision-language model, or a language model alone, whose state belongs to the caller.

Home of everything that touches transformers: `folder` (what lies on disk), `storage` (weights in 8 bits), `settings`,
`memory` and `quantise` (how it is loaded and what that takes), `load` (folder -> model), `processing` and `positions`
(prompt and frame -> model inputs), `cache` (keys and values in rows of slots), `forward` (the layer loop), `fused`,
`kernels` and `graphs` (a layer's operations, the same as Triton kernels, small forwards captured on a GPU), `session`
(one row that grows a tree), `speed` (what a forward takes), `inspect` (the report of
`python -m speculation.vlm inspect`).
"""

import logging

# transformers imports torchao where it is installed, which logs every GPU kernel that this machine has no use for.
# bitsandbytes repeats at every multiplication in 8 bits that activations are cast to float16, which is what it is for.
for _name in ("torchao", "torch.utils._pytree", "bitsandbytes.autograd._functions"):
    logging.getLogger(_name).setLevel(logging.ERROR)
