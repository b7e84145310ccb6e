"""Shows an operator what a verifier does: figures, their pages over HTTP, traces, and a live table.

The server's thread counts into `Figures`, and once a second publishes what its sessions are doing (`Snapshot`). Whoever
shows them, in any thread, reads one value at a time: nothing in the server waits for a reader.
"""
