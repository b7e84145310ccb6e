"""What an operator sees of a verifier: figures, their pages over HTTP, traces, and a live table.

The server's thread counts into `Figures`, plain numbers that only it touches, and publishes a copy of them once a
second (`Snapshot`). Whoever shows them, in any thread, reads the latest copy: nothing in the server waits for a reader.
"""
